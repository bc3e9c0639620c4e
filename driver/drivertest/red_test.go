package drivertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/internal/image"
)

// The kinds of faults, by what is wrong.

func replaced(from, to string) func([]byte) []byte {
	pattern := regexp.MustCompile(from)
	return func(text []byte) []byte { return pattern.ReplaceAll(text, []byte(to)) }
}

var errFault = errors.New("a fault")

func failing(do func() error) error { return errors.Join(do(), errFault) }

func never() <-chan struct{} { return nil }

func nullFile(string) (*os.File, error) { return os.Open(os.DevNull) }

func leftBehind(ctx context.Context, start func(context.Context) (driver.Sandbox, error)) (driver.Sandbox, error) {
	s, err := start(ctx)
	if err != nil || s == nil {
		return nil, errors.Join(err, driver.ErrLeftBehind)
	}
	return s, nil
}

// falling makes a counter fall with every reading.
func falling() func(*driver.Sample) {
	left := time.Hour
	return func(s *driver.Sample) { left -= time.Second; s.CPU = left }
}

// faults has for each case what it must be red by.
func faults(t *testing.T) map[string]fault {
	all := map[string]fault{}
	for _, table := range []map[string]fault{lifeFaults(), fileFaults(t), useFaults(), orderFaults(), networkFaults(), warmFaults()} {
		maps.Copy(all, table)
	}
	return all
}

func lifeFaults() map[string]fault {
	starts := 0
	return map[string]fault{
		"exit codes are the leader's":                      {exit: func(e *driver.Exit) { e.Code++ }},
		"a signal is told apart from an exit":              {exit: func(e *driver.Exit) { e.Signal = 0 }},
		"a program that cannot be executed":                {exit: func(e *driver.Exit) { e.NotStarted = "" }},
		"the leader's end is seen while a child lives":     {streams: func() io.Reader { return bytes.NewReader(nil) }},
		"kill ends daemons in sessions of their own":       {kill: func(func() error) error { return nil }, slack: time.Second},
		"kill right after exec":                            {exit: func(e *driver.Exit) { e.Lost = true }},
		"cpu time only grows and outlives the tree":        {sample: falling()},
		"close kills, may be called again, leaves nothing": {close: failing},
		"close of an unused sandbox":                       {close: failing},
		"a cancelled start makes nothing": {start: func(ctx context.Context, start func(context.Context) (driver.Sandbox, error)) (driver.Sandbox, error) {
			return start(context.WithoutCancel(ctx))
		}},
		"an id is free again after close": {start: func(ctx context.Context, start func(context.Context) (driver.Sandbox, error)) (driver.Sandbox, error) {
			if starts++; starts > 1 {
				return nil, errFault
			}
			return start(ctx)
		}},
		"sandboxes at the same time do not mix":        {out: replaced("word-[0-9]", "word-0")},
		"posture and release time":                     {released: true},
		"stdout and stderr are apart and complete":     {out: replaced("out2", "")},
		"no stdin is an empty stdin":                   {cmd: func(c *driver.Command) { c.Stdin = strings.NewReader("x") }},
		"stdin is streamed to its end":                 {cmd: func(c *driver.Command) { c.Stdin = io.LimitReader(c.Stdin, 1000) }},
		"a stdin that nobody reads delays nothing":     {cmd: func(*driver.Command) { time.Sleep(time.Second) }, slack: time.Second},
		"a stdin that never comes delays nothing":      {cmd: func(*driver.Command) { time.Sleep(time.Second) }, slack: time.Second},
		"kill at any instant":                          {exit: func(e *driver.Exit) { e.Lost = true }},
		"close at any instant":                         {close: func(func() error) error { return nil }, slack: time.Second},
		"a start that is given up at any instant":      {start: leftBehind},
		"an exec that is given up at any instant":      {close: failing},
		"kill, close and sample at the same time":      {close: failing},
		"daemons that hold the streams are ended":      {sample: func(s *driver.Sample) { s.Processes = 0 }},
		"nothing of the host is kept after many":       {cmd: func(*driver.Command) { syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) }},
		"a start that cannot be made leaves nothing":   {spec: func(s *driver.Spec) { s.Limits.CPUs = min(s.Limits.CPUs, 1) }},
		"a sandbox dies within a second of its maker":  {maker: true},
		"what waits dies within a second of its maker": {maker: true},
	}
}

func fileFaults(t *testing.T) map[string]fault {
	exits := fault{exit: func(e *driver.Exit) { e.Code, e.Signal = 0, 0 }}
	dir := t.TempDir()
	for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		os.Chmod(at, 0o755)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return map[string]fault{
		"the environment is exactly what was given":     {cmd: func(c *driver.Command) { c.Env = append(c.Env, "LEAK=1") }},
		"the working directory is what was given":       {cmd: func(c *driver.Command) { c.Dir = "/tmp" }},
		"a bare name is looked up in PATH":              {cmd: func(c *driver.Command) { c.Argv[0] = "/nowhere/sh" }},
		"code is readable and nothing else":             {cmd: func(c *driver.Command) { c.Code = append([]byte("x"), c.Code...) }},
		"no code, no file":                              {cmd: func(c *driver.Command) { c.Code, c.CodeName = []byte("x"), "x" }},
		"inputs are readable and nothing else":          {spec: func(s *driver.Spec) { s.Inputs = "" }},
		"no inputs is an empty folder":                  {spec: func(s *driver.Spec) { s.Inputs = dir }},
		"the scratch folders are writable":              {exit: func(e *driver.Exit) { e.Code = 1 }},
		"the rest is not writable":                      {cmd: func(c *driver.Command) { c.Argv[2] = strings.Replace(c.Argv[2], "/new", "/tmp/new", 1) }},
		"the host is not visible":                       exits,
		"what is not regular is not opened":             {open: nullFile},
		"opening does not leave the folder of outputs":  {open: nullFile},
		"a sandbox has nothing of an earlier one":       {out: replaced("0", "1")},
		"only the standard streams are inherited":       {out: replaced("3", "3\n4")},
		"a device cannot be made or reached in outputs": exits,
		"files that were planted on the host are not found": {spec: func(s *driver.Spec) {
			s.Root.Mounts = append(slices.Clone(s.Root.Mounts), driver.Mount{Source: "/var/tmp", Target: "/found"})
		}},
		"variables, descriptors and memory of the host stay there": {cmd: func(c *driver.Command) {
			c.Env = append(c.Env, "X="+os.Getenv("GLOVEBOX_SUITE_SECRET"))
		}},
		"nothing of the host is reached, nor anything beyond": {cmd: func(c *driver.Command) {
			for _, way := range c.Argv {
				if kind, where, _ := strings.Cut(way, ":"); strings.HasPrefix(where, "127.0.0.1") && kind == "tcp" {
					if conn, err := net.Dial(kind, where); err == nil {
						conn.Close()
					}
				}
			}
		}},
		"processes of a program share memory by its name": {out: replaced("yes wake", "no wake")},
		"a program reaches itself":                        {out: replaced("yes unix @", "no unix @")},
		"sandboxes at the same time do not see each other": {exec: func(b *brokenBox, ctx context.Context, c driver.Command) (driver.Process, error) {
			for _, way := range c.Argv {
				if name, ok := strings.CutPrefix(way, "unix:@"); ok { // of the neighbour: now there is another of that name
					c.Argv = append(slices.Clone(c.Argv), "unix:@"+name)
					b.d.out = replaced("no unix", "yes unix")
				}
			}
			return b.really(ctx, c)
		}},
		"inputs, code and image cannot be changed in any way": {spec: func(s *driver.Spec) {
			os.Chmod(filepath.Join(s.Inputs, "a.txt"), 0o600)
		}},
		"names in outputs are any bytes":                       {open: nullFile},
		"a socket or a device in outputs is not opened":        {open: nullFile},
		"folders in outputs as deep as can be made are opened": {open: nullFile},
	}
}

func useFaults() map[string]fault {
	twice := func(change func(*glovebox.Limits)) fault {
		return fault{spec: func(s *driver.Spec) { change(&s.Limits) }}
	}
	disk := twice(func(l *glovebox.Limits) { l.Disk *= 2 })
	return map[string]fault{
		"memory: the kernel kills and it is counted":       {sample: func(s *driver.Sample) { s.OOMKills = 0 }},
		"memory: just below the limit is fine":             {sample: func(s *driver.Sample) { s.OOMKills = 1 }},
		"processes: a fork is refused and it is counted":   {sample: func(s *driver.Sample) { s.ForksRefused = 0 }},
		"disk: full is seen as no free bytes":              {disk: func(u *driver.DiskUse) { u.FreeBytes = 1 }},
		"files: full is seen as no free files":             {disk: func(u *driver.DiskUse) { u.FreeFiles = 1 }},
		"descriptors: one more is refused":                 twice(func(l *glovebox.Limits) { l.OpenFiles *= 2 }),
		"cpus: bandwidth and the number shown are bounded": {out: replaced("1", "2")},

		"memory: 95 percent of the limit pass, of any kind":           twice(func(l *glovebox.Limits) { l.Memory = l.Memory * 9 / 10 }),
		"memory: above the limit is killed and counted, of any kind":  twice(func(l *glovebox.Limits) { l.Memory *= 2 }),
		"memory: a limit counts for its own sandbox alone":            {sample: func(s *driver.Sample) { s.OOMKills = 1 }},
		"processes: threads count":                                    twice(func(l *glovebox.Limits) { l.Processes = 200 }),
		"processes: a bomb stays in its sandbox":                      twice(func(l *glovebox.Limits) { l.Processes = 64 }),
		"disk: the limit is met exactly, over all folders":            disk,
		"disk: what has no name any more counts":                      disk,
		"disk: a sandbox's room is its own, and is back when it ends": {disk: func(u *driver.DiskUse) { u.Used = 0 }},
		"files: the limit is met exactly":                             twice(func(l *glovebox.Limits) { l.Files *= 2 }),
		"descriptors: the limit is met exactly and cannot be raised":  twice(func(l *glovebox.Limits) { l.OpenFiles *= 2 }),
		"cpus: half a CPU is half a CPU":                              {sample: func(s *driver.Sample) { s.CPU = time.Minute }},
		"cpus: as many are shown as were granted":                     {out: replaced(`"cpus":\["."`, `"cpus":["64"`)},
		"counters only grow, fit the limits and outlive the tree":     {sample: falling()},
		"output: a flood of both streams arrives whole":               {out: func(text []byte) []byte { return text[1:] }},
		"output: what nobody reads holds up nobody":                   {kill: failing},

		"a program is nobody and has no rights":            {out: replaced(`"CapEff":\["0`, `"CapEff":["1`)},
		"calls that change the machine are refused":        {out: replaced("no mount", "yes mount")},
		"nothing names the host or the boot":               {out: func(text []byte) []byte { return hostNamed(text) }},
		"two sandboxes share no chance and no name":        {out: replaced(`"at_random":\["[0-9a-f]*"`, `"at_random":["00"`)},
		"the posture says what a program sees":             {posture: func(p glovebox.Posture) { p["no_new_privs"] = "unset" }},
		"what the machine can give is said before a start": {absent: errFault},
	}
}

func hostNamed(text []byte) []byte {
	name, _ := os.Hostname()
	return replaced(`"hostname":\["[^"]*"`, `"hostname":["`+name+`"`)(text)
}

func orderFaults() map[string]fault {
	return map[string]fault{
		"arguments and variables arrive byte by byte": {cmd: func(c *driver.Command) { c.Argv = append(slices.Clone(c.Argv), "more") }},
		"streams carry any bytes":                     {out: func(text []byte) []byte { return bytes.ToValidUTF8(text, []byte("?")) }},
		"stdin is streamed while the program answers": {out: func(text []byte) []byte { return text }, slack: time.Second},
		"a stream that the program closes ends": {cmd: func(c *driver.Command) {
			c.Argv = []string{"/bin/sh", "-c", "echo last; exec sleep 1007"}
		}, slack: time.Second},
		"one program at a time, and another after it": {exec: func(b *brokenBox, ctx context.Context, c driver.Command) (driver.Process, error) {
			if p := b.before(); p != nil {
				return p, nil
			}
			return b.really(ctx, c)
		}},
		"a closed sandbox takes nothing": {exec: func(b *brokenBox, ctx context.Context, c driver.Command) (driver.Process, error) {
			if p := b.before(); p != nil {
				return p, nil
			}
			return b.really(ctx, c)
		}},
		"an exec that is given up before it begins": {exec: func(b *brokenBox, ctx context.Context, c driver.Command) (driver.Process, error) {
			return b.really(context.WithoutCancel(ctx), c)
		}},
		"a command that cannot be is refused": {cmd: func(c *driver.Command) {
			for i := range c.Argv {
				c.Argv[i] = strings.ReplaceAll(c.Argv[i], "\x00", "")
			}
		}},
		"code of any bytes and of some size is there to read": {cmd: func(c *driver.Command) { c.Code = c.Code[1:] }},
		"a folder to work in that is not there is told":       {cmd: func(c *driver.Command) { c.Dir = "/" }},
	}
}

func networkFaults() map[string]fault {
	type attach = func(driver.Network) (driver.NetLink, error)
	nobody := func(driver.Network, attach) (driver.NetLink, error) {
		f, err := os.Open(os.DevNull)
		return driver.NetLink{File: f}, err
	}
	again := func(n driver.Network, really attach) (driver.NetLink, error) {
		link, err := really(n)
		if errors.Is(err, driver.ErrAttached) {
			return nobody(n, really)
		}
		return link, err
	}
	elsewhere := fault{out: replaced("198.18.1.7", "10.0.0.1")}
	return map[string]fault{
		"network: names and datagrams go over the link and nowhere else": elsewhere,
		"network: libraries find names as they do elsewhere":             elsewhere,
		"network: what is made for one reaches nobody without it":        {out: replaced("^no ", "yes ")},
		"network: it is gone when the link is closed":                    {attach: again},
		"network: its files are there and cannot be changed": {attach: func(n driver.Network, really attach) (driver.NetLink, error) {
			return really(driver.Network{Files: n.Files})
		}},
		"network: a program cannot change it":                            {out: replaced("no down", "yes down")},
		"network: once, before the program, where it was made for it":    {attach: again},
		"network: sandboxes see none of each other's":                    {out: replaced("echo one", "echo other")},
		"network: an interpreter that waits gets it as a cold one does":  {attach: nobody},
		"template: a copy gets a network as a cold sandbox does":         {attach: nobody},
		"network: it is made and given up without anything that is left": {close: failing},
	}
}

func warmFaults() map[string]fault {
	lost := func() <-chan struct{} { c := make(chan struct{}); close(c); return c }
	kept := func() error { return nil }
	return map[string]fault{
		"held: code, arguments, variables and input arrive": {cmd: func(c *driver.Command) { c.Stdin = nil }},
		"held: the fence is that of what is made for a run": {out: replaced(`"NoNewPrivs":\["1"`, `"NoNewPrivs":["0"`)},
		"held: another command, a second one, late limits":  {cmd: func(c *driver.Command) { c.Dir = "/workspace" }},
		"held: the limits of the run hold":                  {resize: kept},
		"held: what is not used leaves nothing":             {close: failing},
		"held: given up at any instant":                     {start: leftBehind},
		"held: its end is told":                             {lost: lost},
		"template: copies share no chance and are apart": {cmd: func(c *driver.Command) {
			if bytes.Contains(c.Code, []byte("tempfile")) {
				c.Code = []byte("print('1 2 3 4 5')")
			}
		}},
		"template: inputs are a copy's own": {spec: func(s *driver.Spec) {
			if strings.HasPrefix(filepath.Clean(s.Inputs), os.TempDir()) && filepath.Base(s.Inputs) == "1" {
				s.Inputs = filepath.Join(filepath.Dir(s.Inputs), "0")
			}
		}},
		"template: its end is told, and is the end of its copies": {ended: never, slack: time.Second},
		"template: a copy holds the limits of its run":            {resize: kept},
	}
}

// TestEveryCaseHasAFault: no case is trusted that was not seen red.
func TestEveryCaseHasAFault(t *testing.T) {
	known := faults(t)
	for _, name := range slices.Sorted(maps.Keys(allCases())) {
		if _, ok := known[name]; !ok {
			t.Errorf("%q is not known to fail", name)
		}
	}
	for name := range known {
		if allCases()[name] == nil {
			t.Errorf("there is no case %q", name)
		}
	}
}

// TestEveryCaseSeesItsFault runs each case against a process driver with a fault, by which it must be red.
func TestEveryCaseSeesItsFault(t *testing.T) {
	if os.Getuid() != 0 || os.Getenv("GLOVEBOX_TEST_LONG") == "" && os.Getenv(roleEnv) == "" {
		t.Skip("long: make test-all runs it, as root")
	}
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "glovebox/cmd/glovebox-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for dir := bin; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	s := Subject{Root: host.Root(), Interpreters: map[string]string{}, test: t.Name()}
	for _, lang := range []string{"python", "bash"} {
		if path, err := host.Interpreter(lang); err == nil {
			s.Interpreters[lang] = path
		}
	}
	working := func(t *testing.T) *process.Driver {
		d, err := process.New(process.Config{Init: filepath.Join(bin, "glovebox-init"), ScratchDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if os.Getenv(roleEnv) != "" {
		s.New = func(t *testing.T) driver.Driver {
			if err := exec.Command("/bin/sleep", "5").Start(); err != nil { // which does not end with this process
				t.Fatal(err)
			}
			return working(t)
		}
		Run(t, s)
		return
	}
	s.Probe = buildProbe(t)
	for name, f := range faults(t) {
		t.Run(name, func(t *testing.T) {
			s := s
			if s.Slack = f.slack; s.Slack == 0 {
				s.Slack = 20 * time.Second
			}
			s.New = func(t *testing.T) driver.Driver { return working(t) }
			d := &broken{Warmer: working(t), fault: f}
			r := &recorder{TB: t}
			r.run(func() { runCase(r, d, s, allCases()[name]) })
			for _, left := range d.made {
				if err := left.Close(context.Background()); err != nil {
					t.Errorf("close: %v", err)
				}
			}
			if !r.failed {
				t.Errorf("it is not red, skipped is %v", r.skipped)
			}
			t.Logf("red: %.300s", r.said.String())
		})
	}
}
