package hostside

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMissing(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if r := Missing("runsc", "drivers.gvisor.runsc", filepath.Join(filepath.Dir(self), "runsc")); strings.Contains(r.Public+r.Fix, "drivers.") ||
		!strings.Contains(r.Fix, "folder of glovebox") {
		t.Errorf("beside the program: %+v", r)
	}
	if r := Missing("runsc", "drivers.gvisor.runsc", "/nope"); !strings.Contains(r.Public, "/nope") ||
		!strings.Contains(r.Fix, "drivers.gvisor.runsc") || strings.Contains(r.Fix, "keep") {
		t.Errorf("configured: %+v", r)
	}
}

func TestFollowed(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.MkdirAll(dir+"/usr/bin", 0o755), os.Symlink("usr/bin", dir+"/bin"),
		os.WriteFile(dir+"/usr/bin/qemu-10", nil, 0o755), os.Symlink("qemu-10", dir+"/usr/bin/qemu")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{dir + "/bin/qemu": dir + "/usr/bin/qemu-10", dir + "/bin/nope": dir + "/bin/nope", "": ""} {
		if got := Followed(path); got != want {
			t.Errorf("Followed(%q) = %q, want %q", path, got, want)
		}
	}
}
