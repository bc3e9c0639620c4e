package imagebuild

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"glovebox"
	"glovebox/internal/image"
	"glovebox/internal/imagestore"
	"glovebox/internal/livefolder"
	"glovebox/internal/unpack"
)

//go:embed assemble.sh
var assembleScript string

// Assembly is what is to be run as root of a kernel of its own: a shell script that finds a folder as /inputs and leaves
// /outputs/image.tar.
type Assembly struct {
	Script, Inputs string
	Log            io.Writer
	Take           func(*os.File) error
}

// Result is the name of what it leaves.
const Result = "image.tar"

// Config is what builds need.
type Config struct {
	Store *imagestore.Store
	// Scratch is a folder that other users can reach, in which this user has a folder for what is fetched, such as /tmp.
	Scratch string
	// Env is the environment of the tools that fetch.
	Env []string
	// Assemble runs an assembly; its error is a *glovebox.Error with code unavailable where that cannot be done here.
	Assemble func(context.Context, Assembly) error
	// Ready tells whether Assemble can be, before anything is fetched.
	Ready func(context.Context) error
	// Log gets a line for each step, and where an assembly fails the last lines of its tools, for whoever waits.
	Log io.Writer
}

// Builder builds images. It is safe for concurrent use.
type Builder struct{ cfg Config }

// New makes a Builder.
func New(cfg Config) *Builder { return &Builder{cfg} }

// Build builds an image and keeps it under a name. locked is what the lock file says, nil where there is none or it is to be
// made anew. It returns what was fetched, for the lock file. source tells what it is made from. A name that is taken is
// refused before anything is fetched, unless it is to be replaced.
func (b *Builder) Build(ctx context.Context, name, source string, r Recipe, locked []Locked, replace bool) (
	*imagestore.Stored, []Locked, error) {
	if err := imagestore.CheckName(name); err != nil {
		return nil, nil, err
	}
	if err := r.check(name); err != nil {
		return nil, nil, err
	}
	if err := b.cfg.Store.Free(name); err != nil && !replace {
		return nil, nil, err
	}
	if r.Base == Release {
		if err := b.cfg.Ready(ctx); err != nil {
			return nil, nil, keyed("base", err)
		}
	}
	var fetched []Locked
	st, err := b.cfg.Store.Add(ctx, name, source, replace, func(ctx context.Context, tree *unpack.Tree,
		_ string) (image.Settings, error) {
		w := &work{Builder: b, recipe: r, locked: locked, tree: tree, env: map[string]string{}}
		settings, err := w.build(ctx)
		fetched = w.fetched
		return settings, err
	})
	return st, fetched, err
}

// work is one build.
type work struct {
	*Builder
	recipe  Recipe
	locked  []Locked
	fetched []Locked
	tree    *unpack.Tree
	env     map[string]string
	modules []string
	// distribution says that all programs that the base has are the distribution's.
	distribution bool
	fetch        *fetcher
}

func (w *work) build(ctx context.Context) (s image.Settings, err error) {
	folder, err := w.folder()
	if err != nil {
		return s, err
	}
	defer func() {
		err = errors.Join(err, w.fetch.root.Close(), folder.Remove(context.WithoutCancel(ctx)))
	}()
	for _, step := range []func(context.Context) error{w.base, w.preimport, w.wheels, w.nodeModules, w.goModules, w.files} {
		if err := step(ctx); err != nil {
			return s, err
		}
	}
	fmt.Fprintln(w.cfg.Log, "sealing")
	for name, value := range w.recipe.Env {
		w.env[name] = value
	}
	modules := w.recipe.Preimport
	if modules == nil {
		modules = w.modules
	}
	s, err = image.NewSettings(w.env, modules)
	s.Distribution = w.distribution && len(w.recipe.Pip) == 0
	return s, err
}

// folder makes the folder for what is fetched. It is not in the store, which nobody else can reach.
func (w *work) folder() (*livefolder.Folder, error) {
	who, err := nobody()
	if err != nil {
		return nil, err
	}
	parent := filepath.Join(w.cfg.Scratch, fmt.Sprintf("glovebox-fetch-%d", os.Getuid()))
	if err := os.Mkdir(parent, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, glovebox.Internal("make a folder to fetch into", err)
	}
	if err := ownFolder(parent); err != nil {
		return nil, err
	}
	if err := livefolder.Sweep(parent, nil); err != nil {
		return nil, glovebox.Internal("remove what dead builds left", err)
	}
	f, err := livefolder.Make(filepath.Join(parent, fmt.Sprintf("%d-%s", os.Getpid(), unique())))
	if err != nil {
		return nil, glovebox.Internal("make a folder to fetch into", err)
	}
	root, err := os.OpenRoot(f.Path)
	if err == nil {
		err = root.Chmod(".", 0o711)
	}
	if err != nil {
		return nil, errors.Join(err, f.Remove(context.Background()))
	}
	w.fetch = &fetcher{dir: f.Path, root: root, env: w.cfg.Env, who: who, log: w.cfg.Log}
	return f, nil
}

// base fills the tree with what the rest goes over.
func (w *work) base(ctx context.Context) error {
	if w.recipe.Base != Release {
		return w.over(ctx)
	}
	d, list, err := w.fetch.apt(ctx, w.recipe.Apt, w.locked)
	if err != nil {
		return keyed("apt", err)
	}
	if err := w.took("apt", list); err != nil {
		return err
	}
	w.distribution = true
	python := func(l Locked) bool { return strings.HasPrefix(l.Name, "python3") }
	if len(w.recipe.Preimport) > 0 && !slices.ContainsFunc(list, python) { // which would be known minutes later
		return noPython("preimport")
	}
	inputs := filepath.Join(w.fetch.dir, "inputs")
	if err := errors.Join(os.Mkdir(inputs, 0o755), os.Rename(d.dir, filepath.Join(inputs, "debs")),
		os.WriteFile(filepath.Join(inputs, "essential"), lines(d.essential), 0o644),
		os.WriteFile(filepath.Join(inputs, "others"), lines(d.others), 0o644)); err != nil {
		return fmt.Errorf("hand over the packages: %w", err)
	}
	fmt.Fprintln(w.cfg.Log, "assembling without a network")
	log := &steps{to: w.cfg.Log}
	err = w.cfg.Assemble(ctx, Assembly{Script: assembleScript, Inputs: inputs, Log: log,
		Take: func(f *os.File) error {
			fmt.Fprintln(w.cfg.Log, "unpacking what was assembled")
			return w.tree.Layer(ctx, f, false)
		}})
	if err != nil {
		log.tell()
	}
	return keyed("apt", err)
}

func lines(list []string) []byte {
	if len(list) == 0 {
		return nil
	}
	return []byte(strings.Join(list, "\n") + "\n")
}

// over fills the tree with another image.
func (w *work) over(ctx context.Context) error {
	used, err := w.cfg.Store.Use(ctx, w.recipe.Base)
	if err != nil {
		return keyed("base", err)
	}
	defer used.Close()
	for _, v := range used.Env() {
		name, value, _ := strings.Cut(v, "=")
		w.env[name] = value
	}
	w.modules, w.distribution = used.Modules(), used.Forks()
	tree, err := os.OpenRoot(used.Tree())
	if err != nil {
		return fmt.Errorf("open the base: %w", err)
	}
	defer tree.Close()
	return w.lay(ctx, func(to io.Writer) error { return unpack.Pack(ctx, to, tree, "") })
}

// lay puts over the tree what a function writes as an archive.
func (w *work) lay(ctx context.Context, write func(io.Writer) error) error {
	from, to := io.Pipe()
	var writing sync.WaitGroup
	writing.Go(func() { to.CloseWithError(write(to)) })
	err := w.tree.Layer(ctx, from, false)
	from.CloseWithError(errors.Join(io.ErrClosedPipe, err))
	writing.Wait()
	return err
}

// took notes what was fetched, and refuses it where the lock file says otherwise.
func (w *work) took(tool string, list []Locked) error {
	w.fetched = append(w.fetched, list...)
	if w.locked == nil {
		return nil
	}
	return keyed(tool, compare(tool, list, w.locked))
}

var pythonName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^python(3\.[0-9]{1,2})$`) })

// python finds the image's Python, and where it looks for packages.
func (w *work) python() (version, site string, err error) {
	for _, at := range []struct{ bin, site string }{
		{"/usr/local/bin", "/usr/local/lib/python%s/site-packages"}, {"/usr/bin", "/usr/local/lib/python%s/dist-packages"},
	} {
		for name := range w.tree.Names(at.bin) {
			if m := pythonName().FindStringSubmatch(name); m != nil {
				return m[1], fmt.Sprintf(at.site, m[1]), nil
			}
		}
	}
	return "", "", noPython("pip")
}

func noPython(key string) error {
	return keyed(key, glovebox.Errorf(glovebox.CodeInvalid, "add python3 to apt, name a base that has it, or leave "+key+" out",
		"there is no Python in the image"))
}

// preimport refuses modules for a Python that is not there.
func (w *work) preimport(context.Context) error {
	if len(w.recipe.Preimport) == 0 {
		return nil
	}
	if _, _, err := w.python(); err != nil {
		return noPython("preimport")
	}
	return nil
}

func (w *work) wheels(ctx context.Context) error {
	if len(w.recipe.Pip) == 0 {
		return nil
	}
	version, site, err := w.python()
	if err != nil {
		return err
	}
	dir, list, err := w.fetch.pip(ctx, version, w.recipe.Pip, w.locked)
	if err != nil {
		return keyed("pip", err)
	}
	if err := w.took("pip", list); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := w.lay(ctx, func(to io.Writer) error { return packWheel(to, name, site) }); err != nil {
			return keyed("pip", err)
		}
	}
	return nil
}

func (w *work) nodeModules(ctx context.Context) error {
	if len(w.recipe.Npm) == 0 {
		return nil
	}
	const at = "usr/local/lib/node_modules"
	dir, list, err := w.fetch.npm(ctx, w.recipe.Npm)
	if err != nil {
		return keyed("npm", err)
	}
	if err := w.took("npm", list); err != nil {
		return err
	}
	w.env["NODE_PATH"] = "/" + at
	return w.layFetched(ctx, dir, at)
}

// layFetched lays down, at a path of the image, a folder that a tool has fetched.
func (w *work) layFetched(ctx context.Context, dir, at string) error {
	root, err := w.fetch.root.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("take what was fetched: %w", err)
	}
	defer root.Close()
	return w.lay(ctx, func(to io.Writer) error { return unpack.Pack(ctx, to, root, at) })
}

// goModules lays down the cache that go finds modules in without a network.
func (w *work) goModules(ctx context.Context) error {
	if len(w.recipe.Go) == 0 {
		return nil
	}
	const at = "usr/local/share/go-modules"
	dir, list, err := w.fetch.goModules(ctx, w.recipe.Go)
	if err != nil {
		return keyed("go", err)
	}
	if err := w.took("go", list); err != nil {
		return err
	}
	for name, value := range map[string]string{"GOPROXY": "file:///" + at, "GOSUMDB": "off", "GOFLAGS": "-mod=mod",
		"GOTOOLCHAIN": "local"} {
		w.env[name] = value
	}
	return w.layFetched(ctx, dir, at)
}

func (w *work) files(context.Context) error {
	for _, f := range w.recipe.Files {
		if err := w.tree.Put(f.Path, f.Data, f.Executable); err != nil {
			return keyed("files", err)
		}
	}
	return nil
}

// keyed says which key of the recipe an error is about.
func keyed(key string, err error) error {
	var e *glovebox.Error
	if err == nil || !errors.As(err, &e) {
		return err
	}
	at := *e
	at.Op = key
	return &at
}
