package kernelfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glovebox/internal/kernelfile"
)

func TestReadWhole(t *testing.T) {
	for _, size := range []int{0, 1, 511, 512, 513, 1024, 4096, 70_000, 1 << 20} {
		path, want := filepath.Join(t.TempDir(), "f"), strings.Repeat("0123456789abcdef", size/16+1)[:size]
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := kernelfile.Read(path); err != nil || got != want {
			t.Errorf("%d bytes: got %d, %v", size, len(got), err)
		}
		f, err := kernelfile.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got, err := f.Read(); err != nil || got != want {
				t.Errorf("%d bytes by descriptor: got %d, %v", size, len(got), err)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestReadBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<30); err != nil {
		t.Fatal(err)
	}
	if got, err := kernelfile.Read(path); !errors.Is(err, unix.EFBIG) || got != "" {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

// TestReadPieces: a file of /proc comes a page at a time at most.
func TestReadPieces(t *testing.T) {
	got, err := kernelfile.Read("/proc/self/smaps")
	if err != nil || len(got) < 5000 || !strings.Contains(got, "[stack]") {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	dir, err := unix.Open("/proc/self", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	if got, err := kernelfile.ReadAt(dir, "comm"); err != nil || !strings.HasSuffix(got, "\n") {
		t.Errorf("comm: %q, %v", got, err)
	}
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := kernelfile.Write(path, "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := kernelfile.Write(path, "new"); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "new" {
		t.Errorf("%q, %v", b, err)
	}
	// What the kernel refuses comes back with its reason and its place.
	err := kernelfile.Write("/dev/full", "x")
	var at *fs.PathError
	if !errors.Is(err, unix.ENOSPC) || !errors.As(err, &at) || at.Path != "/dev/full" {
		t.Errorf("full: %v", err)
	}
}

func TestErrors(t *testing.T) {
	for _, path := range []string{"/nowhere/at/all", "/proc/self/comm/below"} {
		_, err := kernelfile.Read(path)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("read %s: %v", path, err)
		}
		if f, err := kernelfile.Open(path); err == nil {
			t.Errorf("%s was opened", path)
			f.Close()
		}
	}
	if _, err := kernelfile.Read("/proc/self"); !errors.Is(err, unix.EISDIR) {
		t.Errorf("a folder: %v", err)
	}
}
