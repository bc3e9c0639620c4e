package attack_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// targets are paths of the host that must not be there inside.
func (l *laboratory) targets() []string {
	return append(slices.Clone(l.files), l.config, l.data, filepath.Join(l.data, "glovebox.db"),
		filepath.Join(l.data, "runs", l.neighbour.id), filepath.Join(l.bin, "glovebox"))
}

func TestFS01PlainPaths(t *testing.T) {
	contained(t, attack(t, trial{program: "fs01_plain_paths.py", args: need(t).targets()}))
}

func TestFS02Climb(t *testing.T) {
	contained(t, attack(t, trial{program: "fs02_climb.py", args: need(t).targets()}))
}

// The caller has descriptors open that it forgot to close: a canary file and the root folder.
func TestFS04Descriptors(t *testing.T) {
	l := need(t)
	var open []*os.File
	for _, path := range []string{l.files[0], "/", "/root"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		open = append(open, f)
	}
	contained(t, attack(t, trial{program: "fs04_descriptors.py", open: open}))
}

func TestFS06ArtifactLinks(t *testing.T) {
	o := attack(t, trial{program: "fs06_artifact_links.sh", args: need(t).files[:1]})
	contained(t, o)
	var kept, left []string
	for _, a := range o.Artifacts {
		kept = append(kept, a.Path)
	}
	for _, s := range o.Skipped {
		left = append(left, s.Path)
		if s.Reason == "" {
			t.Errorf("%s skipped without a reason", s.Path)
		}
	}
	if slices.Sort(kept); !slices.Equal(kept, []string{"ok.txt", "real/ok.txt", "second-name.txt"}) {
		t.Errorf("kept %q", kept)
	}
	slices.Sort(left)
	want := []string{"a", "b", "climb.txt", "dangling", "door", "env.txt", "folder", "hostname.txt", "real/deep.txt",
		"real/pipe", "report.txt",
		"result.json", "self"}
	if !slices.Equal(left, want) {
		t.Errorf("skipped %q, want %q", left, want)
	}
}

func TestFS08SwapWhileCollected(t *testing.T) {
	rounds := 10
	if long() {
		rounds = 250 // with four names each time
	}
	for range rounds {
		o := attack(t, trial{program: "fs08_swap.py", args: need(t).files[:1]})
		contained(t, o)
		for _, a := range o.Artifacts {
			if text := read(filepath.Join(o.folder, a.Path)); text != "ok" && text != "" {
				t.Errorf("artifact %s holds %q", a.Path, text)
			}
		}
		if t.Failed() {
			return
		}
	}
}

func TestFS12LinksEverywhere(t *testing.T) {
	contained(t, attack(t, trial{program: "fs12_links_everywhere.sh", args: need(t).files}))
}

func TestFS14Devices(t *testing.T) {
	contained(t, attack(t, trial{program: "fs14_devices.py"}))
}

func TestFS16SetUserID(t *testing.T) {
	o := attack(t, trial{program: "fs16_setuid.py"})
	contained(t, o)
	info, err := os.Stat(filepath.Join(o.folder, "id"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeSticky) != 0 {
		t.Errorf("artifact has mode %v", info.Mode())
	}
}

func TestFS18ReadOnlyInputs(t *testing.T) {
	input := filepath.Join(need(t).folder(t), "a")
	if err := os.WriteFile(input, []byte("as it was"), 0o666); err != nil {
		t.Fatal(err)
	}
	before := identity(input)
	contained(t, attack(t, trial{program: "fs18_inputs.py", flags: []string{"--input", input}}))
	if after := identity(input); after != before {
		t.Errorf("input changed: %s -> %s", before, after)
	}
}

func TestFS21SparseGiants(t *testing.T) {
	before := need(t).lookAtHost(t)
	o := attack(t, trial{program: "fs21_sparse.py", within: 10 * time.Second})
	contained(t, o)
	after := lab.lookAtHost(t)
	if gone := before.free - after.free; gone > 512<<20 {
		t.Errorf("the host lost %d bytes", gone)
	}
	if read(filepath.Join(o.folder, "small")) != "fine" {
		t.Errorf("the small file was lost: artifacts %v, skipped %v", o.Artifacts, o.Skipped)
	}
}

var number = regexp.MustCompile(`(?m)^(?:written|made) (\d+)$`)

func counted(t *testing.T, o outcome) int64 {
	t.Helper()
	m := number.FindStringSubmatch(o.Stdout)
	if m == nil {
		t.Fatalf("the program does not say how much it made: status %s, %+v\n%.1000q\n%.1000q", o.Status, o.Error,
			o.Stdout, o.Stderr)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFS22FillTheDisk(t *testing.T) {
	const limit = 64 << 20
	for _, memory := range []string{"512MiB", "96MiB"} { // a workspace in memory, and one on disk
		t.Run("memory "+memory, func(t *testing.T) {
			before := need(t).lookAtHost(t)
			o := attack(t, trial{program: "fs22_fill.py", tell: true, flags: []string{"--disk", "64MiB", "--memory",
				memory},
				args: []string{"/workspace", "/tmp", "/var/tmp", "/outputs", "/dev/shm", "/run", "/"}, during: func() {
					time.Sleep(100 * time.Millisecond)
					if other := lab.run(t, trial{program: "ct_hello.py"}); other.exit != 0 {
						t.Errorf("another run ended with status %s, %+v", other.Status, other.Error)
					}
				}})
			ended(t, o, "disk_limit", 122, "disk")
			if n := counted(t, o); n > limit || n < limit*9/10 {
				t.Errorf("%d bytes went in, with a limit of %d", n, limit)
			}
			if gone := before.free - lab.lookAtHost(t).free; gone > 3*limit {
				t.Errorf("the host lost %d bytes", gone)
			}
		})
	}
}

func TestFS23Inodes(t *testing.T) {
	before := need(t).lookAtHost(t)
	const limit = 3000
	onDisk := "96MiB"
	if lab.caller != nil { // who can have none on disk
		onDisk = "512MiB"
	}
	for folder, memory := range map[string]string{"/workspace": "512MiB", "/outputs": "512MiB", "/tmp": onDisk, "/dev/shm": onDisk} {
		o := attack(t, trial{program: "fs23_inodes.py", tell: true, args: []string{folder},
			flags: []string{"--files", fmt.Sprint(limit), "--disk", "64MiB", "--memory", memory}})
		ended(t, o, "disk_limit", 122, "files")
		if n := counted(t, o); n > limit || n < limit*9/10 {
			t.Errorf("%s: %d names, with a limit of %d", folder, n, limit)
		}
	}
	if gone := before.inodes - lab.lookAtHost(t).inodes; gone > 2*limit {
		t.Errorf("the host lost %d inodes", gone)
	}
}

func TestFS28PipeAsArtifact(t *testing.T) {
	// The names that are pipes are among those of the links; here the time matters, and a whole tree of pipes.
	o := attack(t, trial{program: "fs28_pipes.sh", within: 5 * time.Second})
	contained(t, o)
	if len(o.Artifacts) != 1 || len(o.Skipped) < 50 {
		t.Errorf("artifacts %v, %d skipped", o.Artifacts, len(o.Skipped))
	}
}

func TestFS31SharedImage(t *testing.T) {
	probes := []string{"/usr/zz-probe", "/usr/lib/zz-probe", "/usr/bin/zz-probe", "/etc/zz-probe", "/zz-probe"}
	before := identity("/usr/bin/env") + identity("/etc/passwd") + identity("/etc/ld.so.cache")
	contained(t, attack(t, trial{program: "fs31_image.py"}))
	for _, p := range probes {
		if _, err := os.Lstat(p); err == nil {
			t.Errorf("%s is on the host", p)
		}
	}
	if after := identity("/usr/bin/env") + identity("/etc/passwd") + identity("/etc/ld.so.cache"); after != before {
		t.Error("a file of the image changed")
	}
}

func TestFS33Handles(t *testing.T) {
	contained(t, attack(t, trial{program: "fs33_handles.py", args: []string{
		fmt.Sprintf("name_to_handle_at=%d", unix.SYS_NAME_TO_HANDLE_AT),
		fmt.Sprintf("open_by_handle_at=%d", unix.SYS_OPEN_BY_HANDLE_AT)}}))
}

func TestFS35MovedRules(t *testing.T) {
	contained(t, attack(t, trial{program: "fs35_move_rules.sh", args: need(t).files}))
}

// What is made inside stays inside, whatever it is called; what is collected is only what lies in /outputs.
func TestFS36LaterPaths(t *testing.T) {
	home := read("/root/.bashrc") + read("/root/.profile")
	const mark = "left-by-another-run"
	o := attack(t, trial{program: "fs36_later_paths.sh", args: []string{mark}})
	contained(t, o)
	if read("/root/.bashrc")+read("/root/.profile") != home {
		t.Error("a start-up file of the host changed")
	}
	for _, a := range o.Artifacts {
		if !filepath.IsLocal(a.Path) {
			t.Errorf("artifact %q", a.Path)
		}
	}
}

func TestFS41ControlFiles(t *testing.T) {
	files := []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory",
		"/proc/sys/kernel/hostname", "/proc/sys/kernel/panic"}
	var before []string
	for _, f := range files {
		before = append(before, read(f))
	}
	contained(t, attack(t, trial{program: "fs41_control_files.py"}))
	for i, f := range files {
		if read(f) != before[i] {
			t.Errorf("%s changed", f)
		}
	}
}
