package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"glovebox"
)

// Ways of being judged that many programs share.
const (
	byCanaries = "canaries in what came out, and on the host as they were"
	byLook     = "the kernel's own files about its processes, while it lives"
	byStatus   = "the status, from the kernel's counters"
	byWord     = "only its own word"
)

func paths(l *laboratory) []string { return l.files }

func firstPath(l *laboratory) []string { return l.files[:1] }

func words(list ...string) func(*laboratory) []string {
	return func(*laboratory) []string { return list }
}

// call is an argument that names a system call.
func call(name string, number int) string { return fmt.Sprintf("%s=%d", name, number) }

func files() []Program {
	return []Program{
		{ID: "FS-01", Axis: "FS", Tries: "reads files of the host by their paths", Judged: byCanaries,
			file: "canary_paths.py", args: paths},
		{ID: "FS-02", Axis: "FS", Tries: "climbs out of every folder by dot-dot and descriptors", Judged: byCanaries,
			file: "fs02_climb.py", args: paths},
		{ID: "FS-04", Axis: "FS", Tries: "reads descriptors that the caller left open", Judged: byCanaries,
			file: "canary_descriptors.py"},
		{ID: "FS-06", Axis: "FS", Tries: "leaves links to files of the host as its outputs", Judged: "what was collected",
			file: "fs06_artifact_links.sh", args: firstPath, then: collected("ok.txt", "real/ok.txt", "second-name.txt")},
		{ID: "FS-08", Axis: "FS", Tries: "swaps outputs for links while they are collected", Judged: byCanaries,
			file: "fs08_swap.py",
			args: firstPath},
		{ID: "FS-12", Axis: "FS", Tries: "fills its folders with links for whoever cleans up", Judged: byCanaries,
			file: "fs12_links_everywhere.sh", args: paths},
		{ID: "FS-12/touch", Axis: "FS", Tries: "changes mode, time and owner of files of the host", Judged: byCanaries,
			file: "canary_touch.py", args: paths},
		{ID: "FS-14", Axis: "FS", Tries: "makes device nodes and opens devices of the host", Judged: byLook, file: "hold.py",
			args: words("devices"), look: emptyHanded()},
		{ID: "FS-16", Axis: "FS", Tries: "gains ids by set-user-id copies and file capabilities", Judged: byLook,
			file: "hold.py",
			args: words("setuid"), look: looks(foreign(), unprivileged())},
		{ID: "FS-16/image", Axis: "FS", Tries: "starts every set-user-id program of the image", Judged: byWord, said: true,
			file: "fs16_setuid.py"},
		{ID: "FS-18", Axis: "FS", Tries: "changes an input in every way there is", Judged: "the input, as it was",
			file: "fs18_inputs.py",
			ask:  func(l *laboratory, r *glovebox.Request) { r.Inputs = []glovebox.Input{{Name: "a", Path: l.input}} }},
		{ID: "FS-21", Axis: "FS", Tries: "leaves outputs that look far larger than they are",
			Judged:     "room on the host's disks",
			Disposable: true, file: "fs21_sparse.py", then: costs(1 << 30)},
		{ID: "FS-25", Axis: "FS", Tries: "leaves outputs with names that act on their reader", Judged: "the names shown",
			file: "ou25_names.py", then: plainNames},
		{ID: "FS-28", Axis: "FS", Tries: "leaves pipes where outputs are read", Judged: "what was collected, and when",
			file: "fs28_pipes.sh", then: collected("ok.txt")},
		{ID: "FS-31", Axis: "FS", Tries: "makes files in the image", Judged: "the host's folders", file: "image_probe.py",
			args: func(l *laboratory) []string { return []string{l.name} }, then: notOnHost},
		{ID: "FS-31/mounts", Axis: "FS", Tries: "mounts file systems, and makes its mounts writable", Judged: byLook,
			file: "hold.py",
			args: words(call("mounts", unix.SYS_MOUNT)), look: readOnlyHost()},
		{ID: "FS-33", Axis: "FS", Tries: "opens files by handles", Judged: byWord, said: true, file: "fs33_handles.py",
			args: words(call("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT), call("open_by_handle_at",
				unix.SYS_OPEN_BY_HANDLE_AT))},
		{ID: "FS-35", Axis: "FS", Tries: "reaches files of the host by links and other names", Judged: byCanaries,
			file: "canary_links.sh", args: paths},
		{ID: "FS-41", Axis: "FS", Tries: "opens the kernel's control files for writing", Judged: byLook, file: "hold.py",
			args: words("control_files"), look: emptyHanded()},
	}
}

// collected demands exactly these outputs.
func collected(want ...string) func(*laboratory, *observed) []string {
	return func(_ *laboratory, o *observed) []string {
		var got []string
		for _, a := range o.result.Artifacts {
			got = append(got, a.Path)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return []string{fmt.Sprintf("the outputs are %q and not %q", got, want)}
		}
		return nil
	}
}

// plainNames demands that no name of an output acts on its reader or leaves its folder.
func plainNames(_ *laboratory, o *observed) []string {
	var found []string
	names := []string{}
	for _, a := range o.result.Artifacts {
		names = append(names, a.Path)
		if !filepath.IsLocal(filepath.FromSlash(a.Path)) {
			found = append(found, fmt.Sprintf("the name %q leaves its folder", a.Path))
		}
	}
	for _, s := range o.result.Skipped {
		names = append(names, s.Path)
	}
	if len(names) < 10 {
		found = append(found, fmt.Sprintf("only %d of its outputs are told", len(names)))
	}
	for _, name := range names {
		if unsafeText(name) != "" || strings.ContainsAny(name, "\n\t") {
			found = append(found, fmt.Sprintf("the name %q acts on its reader", name))
		}
	}
	return found
}

// notOnHost demands that the program's probe is in none of the host's folders.
func notOnHost(l *laboratory, _ *observed) []string {
	var found []string
	for _, dir := range []string{"/", "/usr", "/usr/bin", "/usr/lib", "/usr/local/bin", "/etc", "/bin", "/lib", "/var",
		"/usr/lib/python3"} {
		path := filepath.Join(dir, l.name)
		if _, err := os.Lstat(path); err == nil && !slices.Contains(l.files, path) {
			found = append(found, path+" is on the host")
		}
	}
	return found
}

// costs demands that the host's disks lost no more than this.
func costs(bytes int64) func(*laboratory, *observed) []string {
	return func(_ *laboratory, o *observed) []string {
		if o.freed.bytes > bytes {
			return []string{fmt.Sprintf("the host's disks lost %d bytes", o.freed.bytes)}
		}
		return nil
	}
}
