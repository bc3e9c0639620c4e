package trace

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/mod/sumdb/note"

	"glovebox"
	"glovebox/internal/store"
)

// key signs tree heads. Its file holds one line, as package note spells private keys.
type key struct {
	signer note.Signer
	seed   []byte
}

const keyMost = 4 << 10 // bytes of a key's file

// keys has the key once its file could be read. It is safe for concurrent use.
type keys struct {
	path string
	mu   sync.Mutex
	key  *key
}

// errOtherKey is that the log was signed with another key.
var errOtherKey = errors.New("the log of the trace was signed with another key")

// get reads the key unless it was read before, so that what the operator has mended counts from the next run on.
func (ks *keys) get() (*key, error) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if ks.key != nil {
		return ks.key, nil
	}
	k, err := readKey(ks.path)
	if err != nil {
		return nil, keyError(ks.path, err)
	}
	ks.key = k
	return k, nil
}

// make makes the key if there is none. Of several processes that do so at once, the first wins.
func (ks *keys) make() error {
	if _, err := os.Lstat(ks.path); !errors.Is(err, fs.ErrNotExist) {
		return nil // get says what is wrong with it
	}
	private, _, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		return keyError(ks.path, err)
	}
	dir := filepath.Dir(ks.path)
	f, err := os.CreateTemp(dir, ".trace.key-") // mode 0600
	if err != nil {
		return keyError(ks.path, err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // once linked, it stays under its own name
	defer f.Close()
	_, err = io.WriteString(f, private+"\n")
	if err = errors.Join(err, f.Sync()); err == nil {
		if err = os.Link(f.Name(), ks.path); errors.Is(err, fs.ErrExist) {
			return nil
		}
	}
	if err == nil {
		err = store.SyncFolder(dir)
	}
	return keyError(ks.path, err)
}

var (
	errKeyOpen  = errors.New("it is open to others")
	errKeyOwner = errors.New("another user owns it")
	errKeyForm  = errors.New("it holds no key")
)

// readKey reads a key and refuses one that anybody else could have read or put there.
func readKey(path string) (*key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.Mode().IsRegular():
		return nil, errKeyForm
	case int(stat.Uid) != os.Geteuid():
		return nil, errKeyOwner
	case info.Mode().Perm()&0o077 != 0:
		return nil, errKeyOpen
	}
	text, err := io.ReadAll(io.LimitReader(f, keyMost))
	if err != nil {
		return nil, err
	}
	return parseKey(strings.TrimSpace(string(text)))
}

func parseKey(private string) (*key, error) {
	signer, err := note.NewSigner(private)
	if err != nil || signer.Name() != origin {
		return nil, errKeyForm
	}
	// What NewSigner accepts ends in one byte of the algorithm, which is always ed25519, and the seed.
	seed, err := base64.StdEncoding.DecodeString(strings.SplitN(private, "+", 5)[4])
	if err != nil || len(seed) != 1+ed25519.SeedSize {
		return nil, errKeyForm
	}
	return &key{signer, seed[1:]}, nil
}

// public is the key to verify with, as package note spells it.
func (k *key) public() (string, error) {
	return note.NewEd25519VerifierKey(origin, ed25519.NewKeyFromSeed(k.seed).Public().(ed25519.PublicKey))
}

// keyError says why nothing can be signed. It is nil for a nil err.
func keyError(path string, err error) error {
	if err == nil {
		return nil
	}
	why, fix := "its key cannot be read", fmt.Sprintf("make %s readable for this user", path)
	switch {
	case errors.Is(err, errKeyOpen):
		why, fix = "its key is open to others", "chmod 600 "+path
	case errors.Is(err, errKeyOwner):
		why, fix = "its key belongs to another user", "run as the owner of "+path+", or set trace.key to a file of your own"
	case errors.Is(err, errKeyForm):
		why, fix = "the file of its key holds no key", "restore "+path+" from a backup, or set trace.key to where the key is"
	case errors.Is(err, fs.ErrNotExist):
		why = "its key is missing"
		fix = "restore " + path + " from a backup; without the key, set data_dir to a new folder and keep the old one to read"
		if _, gone := os.Stat(filepath.Dir(path)); gone != nil {
			fix = "mkdir -m 700 " + filepath.Dir(path)
		}
	case errors.Is(err, errOtherKey):
		why = "its records were signed with another key"
		fix = "put the key that signed them back at " + path + ", or set data_dir to a new folder and keep the old one to read"
	}
	return &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "read the key of the trace", Err: err, Fix: fix,
		Public: "the trace is not available, so nothing is run: " + why}
}
