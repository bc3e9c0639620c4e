package attack

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"glovebox"
)

func lifetime() []Program {
	return []Program{
		{ID: "LT-01", Axis: "LT", Tries: "finds what the run before left", Judged: byCanaries, file: "lt01_look.py",
			args: func(l *laboratory) []string { return []string{l.name} },
			with: &Program{file: "leave.py", args: func(l *laboratory) []string { return []string{l.secret("the run before")} }}},
		{ID: "LT-09", Axis: "LT", Tries: "acts after its end", Judged: "nothing of it alive on the host", file: "lt09_late.py",
			free: true, then: ends(glovebox.StatusExited, 0, "")},
		{ID: "LT-11", Axis: "LT", Tries: "lives on when its caller cancels, deaf to every signal",
			Judged: "nothing of it alive on the host", file: "hold.py", args: words("deaf"), look: each(anything),
			then: ends(glovebox.StatusCanceled, -1, "")},
	}
}

// anything lives: that is enough.
func anything(*laboratory, process) ([]string, error) { return nil, nil }

func outputs() []Program {
	shown := "the text shown to a reader"
	prints := func(id, text, tries string, flag string, without ...string) Program {
		return Program{ID: id, Axis: "OU", Tries: tries, Judged: shown, file: "ou_print.py", args: words(text), free: true,
			then: all(plainText, flagged(flag), lacks(without...))}
	}
	markers := prints("OU-14", "markers", "prints forged ends of a run", "")
	markers.then = all(plainText, ends(glovebox.StatusExited, 3, ""))
	return []Program{
		prints("OU-01", "screen", "clears the screen and hides text", "ansi", "[2J", "[8m"),
		prints("OU-01/title", "title", "sets titles, asks the terminal, links", "ansi", "]0;", "]8;"),
		prints("OU-02", "clipboard", "writes and reads the clipboard", "ansi", "52;c", "QUJDREVGR0g"),
		prints("OU-02/eight", "eight bits", "does so in the eight-bit form", "invalid_utf8"),
		prints("OU-06", "tags", "hides orders in invisible letters", "invisible", "\U000E0069"),
		prints("OU-07", "bidi", "turns the order of what is read", "bidi", "\u202e", "\u2066"),
		prints("OU-08", "invisible", "prints letters that cannot be seen", "invisible", "\u200bw"),
		prints("OU-09", "control", "prints every control byte", ""),
		prints("OU-10", "invalid", "prints what is no text", "invalid_utf8"),
		prints("OU-13", "orders", "gives orders to its reader", "instruction_like"),
		prints("OU-13/link", "link", "makes its reader load a link", "exfil_link"),
		markers,
		prints("OU-14/json", "json", "prints deep and odd JSON", ""),
		prints("OU-14/marks", "marks", "prints a hundred thousand marks on one letter", ""),
		{ID: "OU-21", Axis: "OU", Tries: "puts what matters into the middle of noise", Judged: "bytes counted, head and tail",
			file: "ou21_middle.py", args: words("what matters", "2000000"), free: true, then: headAndTail,
			ask: func(_ *laboratory, r *glovebox.Request) { r.Limits.View = 4 * glovebox.KiB }},
	}
}

// unsafeText says what in a text acts on its reader, or nothing.
func unsafeText(text string) string {
	if !utf8.ValidString(text) {
		return "bytes that are no text"
	}
	for _, r := range text {
		switch {
		case r < ' ' && r != '\n' && r != '\t', r >= 0x7f && r <= 0x9f:
			return fmt.Sprintf("the control %U", r)
		case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r >= 0xE0000 && r <= 0xE0FFF:
			return fmt.Sprintf("the invisible %U", r)
		}
	}
	return ""
}

func plainText(_ *laboratory, o *observed) []string {
	var found []string
	for name, text := range map[string]glovebox.Untrusted{"stdout": o.result.Stdout, "stderr": o.result.Stderr} {
		if what := unsafeText(string(text)); what != "" {
			found = append(found, fmt.Sprintf("what is shown of %s holds %s", name, what))
		}
	}
	if !o.result.Untrusted {
		found = append(found, "the result is not marked as untrusted")
	}
	if o.result.StdoutBytes == 0 {
		found = append(found, "nothing that it printed was counted")
	}
	return found
}

func flagged(flag string) func(*laboratory, *observed) []string {
	return func(_ *laboratory, o *observed) []string {
		if flag != "" && !slices.Contains(o.result.Flags, flag) {
			return []string{fmt.Sprintf("the flags %q lack %s", o.result.Flags, flag)}
		}
		return nil
	}
}

func lacks(parts ...string) func(*laboratory, *observed) []string {
	return func(_ *laboratory, o *observed) []string {
		var found []string
		for _, part := range parts {
			if strings.Contains(string(o.result.Stdout), part) {
				found = append(found, fmt.Sprintf("what is shown holds %+q", part))
			}
		}
		return found
	}
}

func headAndTail(_ *laboratory, o *observed) []string {
	r := o.result
	total := int64(len("first what matters\n") + 2000000 + len("\nlast what matters"))
	text := string(r.Stdout)
	switch {
	case r.StdoutBytes != total || !r.StdoutTruncated:
		return []string{fmt.Sprintf("%d bytes are counted and not %d, truncated is %v", r.StdoutBytes, total,
			r.StdoutTruncated)}
	case !strings.HasPrefix(text, "first what matters\n") || !strings.HasSuffix(text,
		"\nlast what matters") || len(text) > 5000:
		return []string{fmt.Sprintf("%d bytes are shown, without the head or the tail", len(text))}
	}
	return nil
}

// namesNothing demands that what was printed names neither the host nor its users and folders.
func namesNothing(l *laboratory, o *observed) []string {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	names := map[string]string{"the host's name": host, "the id of the run": o.result.ID, "a folder of the caller's": l.dir}
	for what, file := range map[string]string{"the machine's id": "/etc/machine-id",
		"the boot's id":             "/proc/sys/kernel/random/boot_id",
		"the kernel's command line": "/proc/cmdline", "the machine's serial number": "/sys/class/dmi/id/product_serial"} {
		if text, err := os.ReadFile(file); err == nil {
			names[what] = strings.TrimSpace(string(text))
		}
	}
	for _, dir := range l.cfg.Folders {
		if strings.Count(dir, "/") > 1 {
			names["the folder "+dir] = dir
		}
	}
	var found []string
	for what, name := range names {
		// A host may be called what every sandbox is called.
		if len(name) > 3 && name != "sandbox" && name != "localhost" && strings.Contains(string(o.stdout), name) {
			found = append(found, what+" is shown")
		}
	}
	slices.Sort(found)
	return found
}

func honest() []Program {
	hello := func(id, tries, file string, args ...string) Program {
		return Program{ID: id, Axis: "CT", Tries: tries, Judged: "what it prints and its exit code", file: file,
			args: words(args...),
			free: true, then: all(ends(glovebox.StatusExited, 0, ""), says("hello\n"))}
	}
	p := []Program{hello("CT-00/python", "prints a line in Python", "ct_hello.py"), hello("CT-00/bash",
		"prints a line in bash",
		"ct_hello.sh"), hello("CT-00/node", "prints a line in JavaScript", "ct_hello.js"),
		{ID: "CT-01", Axis: "CT", Tries: "uses everyday Python: pools, sockets, databases, files",
			Judged: "its coming to its end",
			file:   "ct_python.py"},
		{ID: "CT-04", Axis: "CT", Tries: "uses everyday bash: pipes, jobs, traps", Judged: "what it prints and its exit code",
			file: "ct04_shell.sh", free: true, then: all(ends(glovebox.StatusExited, 0, ""),
				says("a\nline\npipe 0\npipefail 1\njob 3\none\ntwo\ntrapped\nthree\nco\n1\nlisted\ncopy\nout\n"))},
		{ID: "CT-10/code", Axis: "CT", Tries: "exits with a code", Judged: byStatus, file: "ct10_ends.sh",
			args: words("code", "7"),
			free: true, then: ends(glovebox.StatusExited, 7, "")},
		{ID: "CT-10/signal", Axis: "CT", Tries: "ends by a signal", Judged: byStatus, file: "ct10_ends.sh",
			args: words("signal", "11"),
			free: true, then: signaled("SIGSEGV")},
		{ID: "CT-10/missing", Axis: "CT", Tries: "calls a program that is not there", Judged: byStatus, file: "ct10_ends.sh",
			args: words("missing"), free: true, then: ends(glovebox.StatusExited, 127, "")},
		{ID: "CT-11", Axis: "CT", Tries: "stays just below its limits", Judged: byStatus, file: "ct11_under.py",
			args: words("files=1900", "processes=29", "output=60000"), free: true, then: ends(glovebox.StatusExited, 0, ""),
			ask: func(_ *laboratory, r *glovebox.Request) {
				r.Limits.Files, r.Limits.Processes, r.Limits.Output = 2000, 32, 1<<16
			}},
	}
	for _, chain := range []string{"c", "cpp", "go", "rust", "java", "node", "ruby", "perl", "git", "make", "pip"} {
		p = append(p, hello("CT-05/"+chain, "builds or runs a program: "+chain, "ct05_chains.sh", chain))
	}
	return p
}

// says demands the exact output.
func says(text string) func(*laboratory, *observed) []string {
	return func(_ *laboratory, o *observed) []string {
		if string(o.stdout) != text {
			return []string{fmt.Sprintf("it printed %d bytes that are not what it must print", len(o.stdout))}
		}
		return nil
	}
}
