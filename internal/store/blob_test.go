package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func shaOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// wantBlob reads a blob back and checks how it lies on the disk.
func wantBlob(t *testing.T, s *Store, sha string, want []byte) {
	t.Helper()
	f, err := s.Open(sha)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("blob %s has %d bytes, want %d; error %v", sha, len(got), len(want), err)
	}
	if info, err := f.Stat(); err != nil || info.Mode() != 0o400 {
		t.Errorf("blob %s: mode %v, error %v, want a file nobody writes to", sha, info.Mode(), err)
	}
}

func leftovers(t *testing.T, s *Store) []fs.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.dir, newFolder))
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestPut(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	for _, content := range [][]byte{nil, []byte("a"), noise(300 << 10)} {
		for range 2 { // the second is known already
			n, sha, err := s.Put(bytes.NewReader(content))
			if err != nil || n != int64(len(content)) || sha != shaOf(content) {
				t.Fatalf("put %d bytes: %d, %s, %v", len(content), n, sha, err)
			}
			wantBlob(t, s, sha, content)
		}
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, _, err := s.Put(strings.NewReader("the same")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantBlob(t, s, shaOf([]byte("the same")), []byte("the same"))
	broken := io.MultiReader(strings.NewReader("half"), iotestErr{})
	if _, _, err := s.Put(broken); !errors.Is(err, errRead) {
		t.Errorf("put what cannot be read: %v", err)
	}
	if left := leftovers(t, s); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}

var errRead = errors.New("cannot read")

type iotestErr struct{}

func (iotestErr) Read([]byte) (int, error) { return 0, errRead }

func TestPutFile(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	folders := map[string]string{"the same file system": t.TempDir()}
	if other, err := os.MkdirTemp("/dev/shm", "glovebox-store-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(other) })
		folders["perhaps another file system"] = other
	}
	for name, folder := range folders {
		content := append(noise(200<<10), name...)
		path := filepath.Join(folder, "kept")
		rewrite(t, path, content)
		n, sha, err := s.PutFile(path)
		if err != nil || n != int64(len(content)) || sha != shaOf(content) {
			t.Fatalf("%s: %d, %s, %v", name, n, sha, err)
		}
		wantBlob(t, s, sha, content)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file is still there: %v", name, err)
		}
	}
	if left := leftovers(t, s); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestPutFileRefuses(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	dir := t.TempDir()
	rewrite(t, filepath.Join(dir, "target"), []byte("secret"))
	if err := errors.Join(os.Symlink("target", filepath.Join(dir, "link")), syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		os.Mkdir(filepath.Join(dir, "folder"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "fifo", "folder", "missing"} {
		if _, _, err := s.PutFile(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s was taken over", name)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "target")); err != nil {
		t.Error(err)
	}
}

// TestRemove: a blob goes by when it was put, whenever it was written, and putting it again makes it young.
func TestRemove(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	path := filepath.Join(t.TempDir(), "kept")
	rewrite(t, path, []byte("printed long ago"))
	if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	_, sha, err := s.PutFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := s.Remove(sha, time.Now().Add(-time.Minute)); gone || err != nil {
		t.Errorf("a young blob was removed: %v, %v", gone, err)
	}
	wantBlob(t, s, sha, []byte("printed long ago"))
	for range 2 { // the second time it is not there
		if gone, err := s.Remove(sha, time.Now().Add(time.Minute)); !gone || err != nil {
			t.Errorf("an old blob: %v, %v", gone, err)
		}
	}
	if f, err := s.Open(sha); !errors.Is(err, fs.ErrNotExist) {
		f.Close()
		t.Errorf("it is still there: %v", err)
	}
	for _, name := range []string{"", "../../glovebox.db", strings.Repeat("/", 64)} {
		if gone, err := s.Remove(name, time.Now().Add(time.Hour)); !gone || err != nil {
			t.Errorf("%q: %v, %v", name, gone, err)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, databaseName)); err != nil {
		t.Error(err)
	}
}

func TestOpenBlobByStrangeNames(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	for _, sha := range []string{"", "ab", "../../glovebox.db", shaOf(nil), strings.Repeat("/", 64), strings.Repeat("é", 32)} {
		if f, err := s.Open(sha); !errors.Is(err, fs.ErrNotExist) {
			if err == nil {
				f.Close()
			}
			t.Errorf("open %q: %v, want that there is none", sha, err)
		}
	}
}

// TestSweep: what nobody writes any more goes at once, whatever its age; what is being written stays, whoever sweeps.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	s, other := mustOpen(t, dir), mustOpen(t, dir)
	folder := filepath.Join(dir, newFolder)
	for _, name := range []string{"blob-dead", "database-dead", "database-dead-wal"} {
		rewrite(t, filepath.Join(folder, name), noise(10))
	}
	half, whole := io.Pipe()
	var n int64
	var err error
	var writing sync.WaitGroup
	writing.Go(func() { n, _, err = s.Put(half) })
	if _, err := whole.Write([]byte("first ")); err != nil { // Put has its file once it reads
		t.Fatal(err)
	}
	for _, sweeper := range []*Store{s, other} {
		if err := sweeper.Sweep(); err != nil {
			t.Fatal(err)
		}
	}
	if left := leftovers(t, s); len(left) != 1 {
		t.Errorf("left: %v, want what is being written", left)
	}
	if _, err := whole.Write([]byte("second")); err != nil {
		t.Fatal(err)
	}
	whole.Close()
	writing.Wait()
	if err != nil || n != 12 {
		t.Errorf("put %d bytes, %v", n, err)
	}
	wantBlob(t, s, shaOf([]byte("first second")), []byte("first second"))
	if left := leftovers(t, s); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}

// TestSweepWhileWriting: no sweep takes a blob from its writer, not even just after its making.
func TestSweepWhileWriting(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	done := make(chan struct{})
	var sweeping, writing sync.WaitGroup
	sweeping.Go(func() {
		for !ended(done) {
			if err := s.Sweep(); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 4 {
		writing.Go(func() {
			for j := range 25 {
				if _, _, err := s.Put(strings.NewReader(fmt.Sprint(i, j))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	close(done)
	sweeping.Wait()
}

func ended(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestBatch(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	b := s.NewBatch()
	if err := b.Commit(); err != nil {
		t.Errorf("an empty batch: %v", err)
	}
	want := map[string]string{}
	for round := range 3 {
		for i := range 40 {
			content := fmt.Sprint(round, i/2) // each twice
			n, sha, err := b.Put(strings.NewReader(content))
			if err != nil || n != int64(len(content)) {
				t.Fatal(n, err)
			}
			if f, err := s.Open(sha); err == nil {
				f.Close()
				if want[sha] == "" {
					t.Errorf("%q can be opened before it is committed", content)
				}
			}
			want[sha] = content
		}
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		for sha, content := range want {
			f, err := s.Open(sha)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(f); err != nil || string(got) != content {
				t.Errorf("%q, %v, want %q", got, err, content)
			}
			f.Close()
		}
	}
	left, err := os.ReadDir(filepath.Join(s.dir, newFolder))
	if err != nil || len(left) > 0 {
		t.Errorf("left half-written: %v, %v", left, err)
	}
}

// TestBatchFails commits where blobs cannot get their names: nothing counts, nothing is left, and the next batch works.
func TestBatchFails(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	b := s.NewBatch()
	var shas []string
	for i := range 20 {
		_, sha, err := b.Put(strings.NewReader(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		shas = append(shas, sha)
	}
	in := filepath.Join(s.dir, blobFolder, shas[11][:2])
	if err := os.WriteFile(in, []byte("in the way"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); err == nil {
		t.Fatal("committed although a folder could not be made")
	}
	if left, err := os.ReadDir(filepath.Join(s.dir, newFolder)); err != nil || len(left) > 0 {
		t.Errorf("left half-written: %v, %v", left, err)
	}
	if err := os.Remove(in); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Put(strings.NewReader("again")); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); err != nil {
		t.Errorf("the next batch: %v", err)
	}
}
