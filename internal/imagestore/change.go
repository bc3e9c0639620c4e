package imagestore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/cleanup"
	"glovebox/internal/image"
	"glovebox/internal/livefolder"
	"glovebox/internal/unpack"
)

const making = "making-"

// Fill fills the tree of a new image and tells what else it says. work is a folder for what is needed meanwhile.
type Fill func(ctx context.Context, tree *unpack.Tree, work string) (image.Settings, error)

// Add keeps what fill makes under a name. source tells what it is made from. A name that stands for another image already is
// a conflict unless replace is set; making the same twice, or at the same time, is none. After an error nothing is left.
func (s *Store) Add(ctx context.Context, name, source string, replace bool, fill Fill) (_ *Stored, err error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	var undo cleanup.Stack
	defer func() { err = explain(errors.Join(err, undo.Run(context.WithoutCancel(ctx)))) }()
	f, err := livefolder.Make(filepath.Join(s.cfg.Dir, making+rand.Text()))
	if err != nil {
		return nil, err
	}
	undo.Push("remove what was made", f.Remove)
	st, err := s.fill(ctx, f.Path, source, fill)
	if err != nil {
		return nil, err
	}
	st.Name = name
	if err := s.commit(ctx, f, st, replace); err != nil {
		return nil, err
	}
	return st, nil
}

// explain tells a full disk, which the caller can mend, from a failure.
func explain(err error) error {
	var known *glovebox.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return &glovebox.Error{Code: glovebox.CodeExhausted, Op: "make the image",
			Public: "there is no room for the image in data_dir",
			Fix:    "make room there, or set data_dir to a folder of another file system", Err: err}
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return glovebox.Internal("make the image", err)
}

// prepare makes the folders of the store and removes what dead processes left.
func (s *Store) prepare() error {
	for _, dir := range []string{s.cfg.Dir, s.names()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return glovebox.Internal("make the folder of images", err)
		}
	}
	info, err := os.Lstat(s.cfg.Dir)
	if err != nil {
		return glovebox.Internal("look at the folder of images", err)
	}
	if st := info.Sys().(*syscall.Stat_t); !info.IsDir() || info.Mode().Perm()&0o077 != 0 || int(st.Uid) != os.Getuid() {
		return glovebox.Errorf(glovebox.CodeUnavailable, "make it a folder of your own that nobody else can enter (chmod 700)",
			"others than this user can reach the folder of images in data_dir")
	}
	return s.Sweep()
}

// Sweep removes what processes that died were making or removing.
func (s *Store) Sweep() error {
	err := livefolder.Sweep(s.cfg.Dir, func(name string) bool { return strings.HasPrefix(name, making) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return glovebox.Internal("remove what half-made images left", err)
}

// fill makes all of an image in dir.
func (s *Store) fill(ctx context.Context, dir, source string, fill Fill) (*Stored, error) {
	at, work := filepath.Join(dir, "tree"), filepath.Join(dir, "work")
	if err := errors.Join(os.Mkdir(at, 0o700), os.Mkdir(work, 0o700)); err != nil {
		return nil, err
	}
	tree, err := unpack.New(unpack.Config{Dir: at, MaxBytes: s.cfg.MaxBytes, MaxEntries: maxEntries,
		Reserved: image.Reserved()})
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	settings, err := fill(ctx, tree, work)
	if err != nil {
		return nil, err
	}
	if err := livefolder.RemoveTree(work); err != nil {
		return nil, err
	}
	if err := image.Settle(tree); err != nil {
		return nil, err
	}
	entries, err := tree.Finish()
	if err != nil {
		return nil, err
	}
	manifest := encode(settings, entries)
	if len(manifest) > maxText {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "import something smaller",
			"the list of what the image holds is too long")
	}
	st := &Stored{Digest: digestOf(manifest), Created: s.cfg.Now().UTC(), Source: source, Dropped: tree.Dropped(),
		Entries: len(entries)}
	for _, e := range entries {
		st.Bytes += e.Size
	}
	about, err := json.Marshal(st)
	if err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{"manifest": manifest, "about": about} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o400); err != nil {
			return nil, err
		}
	}
	return st, reseal(ctx, dir)
}

// reseal takes down what the tree in dir looks like now.
func reseal(ctx context.Context, dir string) error {
	// First to the disk: what is not there after the machine lost its power must not look as if it were.
	if err := syncAll(dir); err != nil {
		return err
	}
	seal, err := sealOf(ctx, filepath.Join(dir, "tree"))
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(dir, "seal"), seal+"\n")
}

func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// replaceFile writes a small file whole or not at all.
func replaceFile(name, text string) error {
	next := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".next") // which is the name of no image
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(next, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return nil
}

// alone holds the store for a change of its names. It is short.
func (s *Store) alone() (*os.File, error) { return livefolder.Lock(s.cfg.Dir, 0) }

// Free is nil while no image has a name, else a *glovebox.Error with code conflict. Another may take it the next moment.
func (s *Store) Free(name string) error {
	switch digest, err := s.Digest(name); {
	case publicCode(err) == glovebox.CodeNotFound:
		return nil
	case err != nil:
		return err
	default:
		return taken(name, digest)
	}
}

func taken(name, digest string) error {
	return glovebox.Errorf(glovebox.CodeConflict, "say --replace, or --name with another one",
		"there is another image named %s (%.19s…)", name, digest)
}

// commit gives an image that was made its place and its name. On success f holds nothing any more that is to be removed.
func (s *Store) commit(ctx context.Context, f *livefolder.Folder, st *Stored, replace bool) (err error) {
	alone, err := s.alone()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, alone.Close()) }()
	was, err := s.Digest(st.Name)
	switch {
	case publicCode(err) == glovebox.CodeNotFound:
		was = ""
	case err != nil && !replace:
		return err
	case err == nil && was != st.Digest && !replace:
		return taken(st.Name, was)
	}
	back, err := s.place(ctx, f, st)
	if err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(s.names(), st.Name), st.Digest+"\n"); err != nil {
		return errors.Join(err, back())
	}
	if was == st.Digest || was == "" {
		return nil
	}
	return s.dropUnnamed(was)
}

// place puts a folder that was made where its digest belongs. One that is there already stays, if it is whole. back takes it
// away again.
func (s *Store) place(ctx context.Context, f *livefolder.Folder, st *Stored) (back func() error, err error) {
	at, stays := s.folder(st.Digest), func() error { return nil }
	// Whoever made it a moment ago has it locked alone still, for a moment; nobody else has, who would need what we hold.
	lock, err := livefolder.Lock(at, livefolder.Shared)
	if errors.Is(err, fs.ErrNotExist) {
		return func() error { return os.Rename(at, f.Path) }, os.Rename(f.Path, at)
	}
	if err != nil {
		return nil, err
	}
	u, err := s.use(ctx, st.Name, st.Digest, lock)
	if err == nil {
		return stays, u.Close()
	}
	lock.Close()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lock, err = livefolder.Lock(at, livefolder.NoWait)
	if err != nil {
		return nil, inUse(st.Name, err)
	}
	defer lock.Close()
	// What f.Remove removes is then the damaged one.
	return stays, unix.Renameat2(unix.AT_FDCWD, f.Path, unix.AT_FDCWD, at, unix.RENAME_EXCHANGE)
}

func inUse(name string, err error) error {
	if errors.Is(err, unix.EWOULDBLOCK) {
		return glovebox.Errorf(glovebox.CodeConflict, "wait for the runs that use it to end; a server lets go of it "+
			"pool.idle (10 minutes unless set) and a minute after the last one, or when it is stopped",
			"the image %s is in use", name)
	}
	return err
}

// dropUnnamed removes the image of a digest unless it has a name or is in use; then whoever next changes names removes it.
func (s *Store) dropUnnamed(digest string) error {
	names, err := s.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if d, err := s.Digest(name); err == nil && d == digest {
			return nil
		}
	}
	lock, err := livefolder.Lock(s.folder(digest), livefolder.NoWait)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.discard(lock)
}

// discard removes a folder of the store that is locked alone, and lets it go.
func (s *Store) discard(lock *os.File) error {
	gone := filepath.Join(s.cfg.Dir, making+rand.Text())
	if err := os.Rename(lock.Name(), gone); err != nil {
		return errors.Join(err, lock.Close())
	}
	return errors.Join(livefolder.RemoveTree(gone), lock.Close())
}

// Remove takes a name away, and the image too unless it has another name. One that is in use is a conflict, and stays.
func (s *Store) Remove(name string) (err error) {
	if _, err := s.Digest(name); publicCode(err) == glovebox.CodeNotFound {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	alone, err := s.alone()
	if err != nil {
		return glovebox.Internal("lock the images", err)
	}
	defer func() { err = glovebox.Internal("remove the image", errors.Join(err, alone.Close())) }()
	digest, lock, err := s.open(name, livefolder.NoWait)
	switch {
	case publicCode(err) == glovebox.CodeNotFound:
		return err
	case errors.Is(err, unix.EWOULDBLOCK):
		return inUse(name, err)
	case err != nil && publicCode(err) != glovebox.CodeUnavailable: // what is damaged may go
		return err
	}
	if err := os.Remove(filepath.Join(s.names(), name)); err != nil {
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
		return fmt.Errorf("remove the name: %w", err)
	}
	if lock != nil {
		lock.Close()
		err = s.dropUnnamed(digest)
	}
	return errors.Join(err, s.dropAllUnnamed())
}

// dropAllUnnamed removes the images that have no name and are not in use.
func (s *Store) dropAllUnnamed() error {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if digest := strings.Replace(e.Name(), "-", ":", 1); digestPattern().MatchString(digest) {
			errs = append(errs, s.dropUnnamed(digest))
		}
	}
	return errors.Join(errs...)
}
