package microvm

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestHidden: what an ordinary user may not read is empty in the image, and keeps nobody from making one. Root reads all.
func TestHidden(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read everything")
	}
	d, root := imageWorld(t)
	if err := os.Chmod(filepath.Join(root.Mounts[0].Source, "bin/sh"), 0o311); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(root.Mounts[0].Source, "closed")
	if err := os.Mkdir(closed, 0o311); err != nil {
		t.Fatal(err)
	}
	f, err := d.rootImage(context.Background(), root)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	for _, folder := range []string{root.Mounts[0].Source, filepath.Dir(closed)} { // with the folder in the way, and the file
		if _, err := d.inputsImage(context.Background(), folder); err == nil {
			t.Error("inputs that cannot be read were left out")
		}
		if err := os.Chmod(closed, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
