package imagestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/image"
	"glovebox/internal/livefolder"
	"glovebox/internal/spelling"
	"glovebox/internal/unpack"
)

// Config says where a store is and how large an image may be.
type Config struct {
	// Dir is the folder of the store. It is made when something is first kept.
	Dir string
	// MaxBytes bounds one image, unpacked. Zero: 20 GiB.
	MaxBytes glovebox.Size
	// Now is the time of records; nil means time.Now.
	Now func() time.Time
}

// Bounds of an image.
const (
	defaultMax = 20 * glovebox.GiB
	maxEntries = 1_000_000
	maxAbout   = 64 << 10
	maxText    = 512 << 20 // of a manifest
)

// Store keeps images. It has no state of its own: all methods are safe for concurrent use, also by several processes.
type Store struct{ cfg Config }

// New makes a Store. It looks at nothing.
func New(cfg Config) *Store {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = defaultMax
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Store{cfg}
}

// Stored is an image that is kept.
type Stored struct {
	Name    string         `json:"name"`
	Digest  string         `json:"digest"` // sha256:…
	Bytes   int64          `json:"bytes"`  // of all files
	Entries int            `json:"entries"`
	Created time.Time      `json:"created"`
	Source  string         `json:"source"` // what it was made from, in the words of whoever made it
	Dropped unpack.Dropped `json:"dropped"`
	// Problem says why it cannot be used as far as a look tells; empty when it can.
	Problem string `json:"problem,omitempty"`
}

var (
	namePattern   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`) })
	digestPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^sha256:[0-9a-f]{64}$`) })
)

// CheckName refuses what cannot be the name of an image. Its error is a *glovebox.Error with code invalid.
func CheckName(name string) error {
	switch {
	case name == "host":
		return glovebox.Errorf(glovebox.CodeInvalid, "say --name with another one", "host is what this machine itself has")
	case !namePattern().MatchString(name):
		return glovebox.Errorf(glovebox.CodeInvalid, "say --name with small letters, digits and . _ -, at most 64",
			"%.80q cannot be the name of an image", name)
	}
	return nil
}

func (s *Store) names() string { return filepath.Join(s.cfg.Dir, "names") }
func (s *Store) folder(digest string) string {
	return filepath.Join(s.cfg.Dir, strings.Replace(digest, ":", "-", 1))
}

// Names are the names of what is kept, sorted. They may change at any time.
func (s *Store) Names() ([]string, error) {
	entries, err := os.ReadDir(s.names())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, glovebox.Internal("list the images", err)
	}
	var list []string
	for _, e := range entries {
		if namePattern().MatchString(e.Name()) {
			list = append(list, e.Name())
		}
	}
	return list, nil
}

// Digest is what a name stands for now. Its error is a *glovebox.Error: not_found, or unavailable for a name that is
// damaged.
func (s *Store) Digest(name string) (string, error) {
	var b []byte
	err := fs.ErrNotExist
	if namePattern().MatchString(name) {
		b, err = os.ReadFile(filepath.Join(s.names(), name))
	}
	if errors.Is(err, fs.ErrNotExist) {
		known, _ := s.Names()
		fix := "`glovebox image ls` lists them"
		if n := spelling.Nearest(name, append(known, "host")); n != "" {
			fix = "did you mean " + n + "?"
		}
		return "", glovebox.Errorf(glovebox.CodeNotFound, fix, "there is no image named %.80q", name)
	}
	if err != nil {
		return "", glovebox.Internal("read the name of an image", err)
	}
	digest := strings.TrimSuffix(string(b), "\n")
	if !digestPattern().MatchString(digest) {
		return "", damaged(name, "its name stands for no digest")
	}
	return digest, nil
}

// damaged refuses an image that is not what it was.
func damaged(name, why string) error {
	return glovebox.Errorf(glovebox.CodeUnavailable,
		fmt.Sprintf("run `glovebox image verify %s`, which tells what is wrong; import or build it again", name),
		"the image %s is not as it was made: %s", name, why)
}

// Used is an image that is in use: nobody removes it until Close. Its methods beside those of the image are not for
// concurrent use.
type Used struct {
	*image.Image
	name, dir string
	seal      string
	lock      *os.File
	watch     *watch // nil: nobody asked for it
}

// Use opens an image by name and checks that its manifest is that of its digest, and that nothing changed in its tree since
// it was made or verified. Errors are *glovebox.Error: not_found, or unavailable for one that is damaged.
func (s *Store) Use(ctx context.Context, name string) (*Used, error) {
	digest, lock, err := s.open(name, livefolder.Shared)
	if err != nil {
		return nil, err
	}
	u, err := s.use(ctx, name, digest, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return u, nil
}

func (s *Store) use(ctx context.Context, name, digest string, lock *os.File) (*Used, error) {
	dir := s.folder(digest)
	manifest, err := readManifest(name, dir, digest)
	if err != nil {
		return nil, err
	}
	settings, err := settingsOf(manifest)
	if err != nil {
		return nil, damaged(name, err.Error())
	}
	seal, err := os.ReadFile(filepath.Join(dir, "seal"))
	if err != nil {
		return nil, damaged(name, "its seal is missing")
	}
	u := &Used{name: name, dir: dir, seal: strings.TrimSuffix(string(seal), "\n"), lock: lock}
	if err := u.Check(ctx); err != nil {
		return nil, err
	}
	if u.Image, err = image.Unpacked(name, filepath.Join(dir, "tree"), digest, settings); err != nil {
		return nil, damaged(name, "its tree cannot be read")
	}
	return u, nil
}

// open finds the folder of an image and locks it.
func (s *Store) open(name string, how int) (digest string, lock *os.File, err error) {
	for range 10 { // a name may stand for another image by the time that the folder of the one is looked for
		if digest, err = s.Digest(name); err != nil {
			return "", nil, err
		}
		if lock, err = livefolder.Lock(s.folder(digest), how); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return digest, nil, damaged(name, "its folder is missing")
	case errors.Is(err, unix.EWOULDBLOCK):
		return digest, nil, err
	case err != nil:
		return digest, nil, glovebox.Internal("lock an image", err)
	}
	return digest, lock, nil
}

// readManifest reads a manifest and checks that it is that of a digest.
func readManifest(name, dir, digest string) ([]byte, error) {
	manifest, err := readBounded(filepath.Join(dir, "manifest"), maxText)
	if err != nil {
		return nil, damaged(name, "its manifest cannot be read")
	}
	if digestOf(manifest) != digest {
		return nil, damaged(name, "its manifest is another one")
	}
	return manifest, nil
}

func readBounded(name string, most int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err == nil && info.Size() > most {
		err = errors.New("it is too large")
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(name)
}

// Check fails when something changed in the image's tree since it was made or verified.
func (u *Used) Check(ctx context.Context) error {
	seal, err := sealOf(ctx, filepath.Join(u.dir, "tree"))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return damaged(u.name, "its tree cannot be read")
	case seal != u.seal:
		return damaged(u.name, "a file of it was changed, replaced, added or removed, or the store was copied")
	}
	return nil
}

// Tree is the folder of what it holds, until Close.
func (u *Used) Tree() string { return filepath.Join(u.dir, "tree") }

// Close lets go of the image.
func (u *Used) Close() error {
	if u.watch != nil {
		return errors.Join(u.watch.close(), u.lock.Close())
	}
	return u.lock.Close()
}

// List is all that is kept, by name.
func (s *Store) List() ([]Stored, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	list := []Stored{}
	for _, name := range names {
		digest, err := s.Digest(name)
		if publicCode(err) == glovebox.CodeNotFound { // it went meanwhile
			continue
		}
		st := Stored{Name: name, Digest: digest}
		if err == nil {
			var b []byte
			if b, err = readBounded(filepath.Join(s.folder(digest), "about"), maxAbout); err == nil {
				err = json.Unmarshal(b, &st)
			}
			st.Name, st.Digest = name, digest
		}
		if err != nil {
			st.Problem = "damaged: `glovebox image verify " + name + "`"
		}
		list = append(list, st)
	}
	slices.SortFunc(list, func(a, b Stored) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func publicCode(err error) glovebox.Code {
	var e *glovebox.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
