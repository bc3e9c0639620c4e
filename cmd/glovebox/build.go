package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/driver/gvisor"
	"glovebox/internal/image"
	"glovebox/internal/imagebuild"
	"glovebox/internal/imagestore"
)

func (a *app) imageBuild() *cobra.Command {
	var name string
	var replace, update, quiet bool
	cmd := &cobra.Command{
		Use:   "build FILE",
		Short: "Build an image of packages, as a small file says",
		Long: "Build an image of packages, as a small file says (docs/images.md).\n\n" +
			"Packages are fetched by this machine's own tools, from where its configuration says, and compared with FILE.lock,\n" +
			"which is made when it is missing. They are installed without a network, as root of a kernel of its own: that takes\n" +
			"the gvisor rung.",
		Example: "  glovebox image build images/python-data.yaml\n  glovebox run --image python-data analyse.py",
		Args:    oneArg("FILE"),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&name, "name", "", "call it `NAME` (default: FILE without its suffix)")
	f.BoolVar(&replace, "replace", false, "take the name from another image that has it")
	f.BoolVar(&update, "update-lock", false, "make FILE.lock anew from what is fetched now")
	f.BoolVar(&quiet, "quiet", false, "show no progress")
	f.BoolVar(&a.json, "json", a.json, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file := args[0]
		if name == "" {
			name = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".yaml"), ".yml"))
		}
		b := &build{app: a, file: file, name: name, replace: replace, update: update, log: io.Discard}
		if !quiet {
			b.log = &progress{to: a.errs, begun: time.Now()}
		}
		return b.run(cmd)
	}
	return cmd
}

// build is one use of image build.
type build struct {
	*app
	file, name      string
	replace, update bool
	log             io.Writer
	lines           settings // where in the file its keys are
}

func (b *build) run(cmd *cobra.Command) error {
	if err := imagestore.CheckName(b.name); err != nil {
		return err
	}
	recipe, err := b.recipe()
	if err != nil {
		return err
	}
	locked, err := b.locked()
	if err != nil {
		return err
	}
	store, err := b.imageStore(cmd)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), endings...)
	defer stop()
	builder, err := b.builder(store)
	if err != nil {
		return err
	}
	st, fetched, err := builder.Build(ctx, b.name, "build "+filepath.Base(b.file), recipe, locked, b.replace)
	if err != nil {
		var e *glovebox.Error
		if errors.As(err, &e) && slices.Contains(recipeKeys, e.Op) {
			err = b.lines.located(err)
		}
		return cancelled(ctx, err)
	}
	if locked == nil && len(fetched) > 0 {
		if err := os.WriteFile(b.file+".lock", imagebuild.FormatLock(fetched), 0o644); err != nil {
			return glovebox.Errorf(glovebox.CodeInvalid, "put the file where you may write, and build again",
				"the image was made, and %q could not be written", short(b.file+".lock"))
		}
	}
	return b.showMade(st)
}

// builder makes what builds, with this machine's gvisor driver.
func (b *build) builder(store *imagestore.Store) (*imagebuild.Builder, error) {
	s, err := b.settings()
	if err != nil {
		return nil, err
	}
	all, _, err := drivers(s)
	if err != nil {
		return nil, err
	}
	var kernel *gvisor.Driver
	for _, d := range all {
		if k, ok := d.(*gvisor.Driver); ok {
			kernel = k
		}
	}
	return imagebuild.New(imagebuild.Config{Store: store, Scratch: os.TempDir(), Env: b.toolEnv(), Log: b.log,
		Ready: func(ctx context.Context) error {
			err := kernel.Available(ctx)
			var e *glovebox.Error
			if errors.As(err, &e) {
				return glovebox.Errorf(e.Code, e.Fix,
					"packages are installed on the gvisor rung, which is not available here: %s", e.Public)
			}
			return err
		},
		Assemble: func(ctx context.Context, a imagebuild.Assembly) error { return assemble(ctx, kernel, a) },
	}), nil
}

// What a build may take.
const (
	buildMemory = 2 * glovebox.GiB
	buildDisk   = 16 * glovebox.GiB
	buildLimit  = time.Hour
)

// assemble runs an assembly on the gvisor rung, with the programs of this machine's own image.
func assemble(ctx context.Context, kernel *gvisor.Driver, a imagebuild.Assembly) error {
	host, err := image.Host(image.Config{})
	if err != nil {
		return err
	}
	for _, program := range []string{"/usr/bin/dpkg-deb", "/usr/bin/tar", "/usr/sbin/chroot", "/usr/bin/mount"} {
		if _, err := os.Stat(program); err != nil {
			return glovebox.Errorf(glovebox.CodeUnavailable, "build it on Debian or a distribution made from it",
				"there is no %s on this machine, which assembles images", program)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, buildLimit, fmt.Errorf("it took longer than %v", buildLimit))
	defer cancel()
	return kernel.Assemble(ctx, gvisor.Assembly{ID: fmt.Sprintf("build_%d_%d", os.Getpid(), time.Now().UnixNano()),
		Limits: glovebox.Limits{Wall: buildLimit, CPU: buildLimit, CPUs: 2, Memory: buildMemory, Disk: buildDisk, Files: 1_000_000,
			OpenFiles: 65536, Processes: 1024, Egress: 1, Output: glovebox.GiB, View: glovebox.KiB},
		Root: host.Root(), Inputs: a.Inputs, Log: a.Log, Argv: []string{"/bin/sh", "-c", a.Script},
		Env:    []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8", "HOME=/root"},
		Result: imagebuild.Result, Take: a.Take})
}

// toolEnv is what of this environment the tools that fetch are given: where they ask, and through what.
func (b *build) toolEnv() []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
		"SSL_CERT_FILE",
		"REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_INDEX_URL", "PIP_NO_INDEX", "PIP_EXTRA_INDEX_URL", "PIP_CERT",
		"PIP_FIND_LINKS",
		"GOPROXY", "GONOSUMDB", "GOSUMDB", "GOPRIVATE", "NPM_CONFIG_REGISTRY", "npm_config_registry", "NPM_CONFIG_CAFILE",
		"npm_config_cafile"} {
		if v := b.getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// recipeKeys are those of a build file.
var recipeKeys = []string{"base", "apt", "pip", "npm", "go", "files", "env", "preimport"}

// recipe reads the build file.
func (b *build) recipe() (imagebuild.Recipe, error) {
	r := imagebuild.Recipe{Base: imagebuild.Release, Env: map[string]string{}}
	text, err := readBuildFile(b.file)
	if err != nil {
		return r, err
	}
	b.lines = settings{file: b.file, lines: map[string]int{}}
	root, err := os.OpenRoot(filepath.Dir(b.file))
	if err != nil {
		return r, fileError(b.file, err)
	}
	defer root.Close()
	packages := func(tool string, to *[]string) *key {
		return &key{item: func(v string) error { *to = append(*to, v); return imagebuild.CheckPackage(tool, v) }}
	}
	err = b.lines.parseAs(&key{keys: map[string]*key{
		"base": scalar(func(v string) error { r.Base = v; return nil }),
		"apt":  packages("apt", &r.Apt), "pip": packages("pip", &r.Pip), "npm": packages("npm", &r.Npm),
		"go":    packages("go", &r.Go),
		"files": {each: func() *element { return fileKeys(root, &r) }},
		"env": {item: func(v string) error {
			name, value, ok := strings.Cut(v, "=")
			if _, twice := r.Env[name]; !ok || name == "" || twice {
				return glovebox.Errorf(glovebox.CodeInvalid, "write NAME=VALUE, each name once", "%q sets no variable", short(v))
			}
			r.Env[name] = value
			return nil
		}},
		"preimport": {item: func(v string) error { r.Preimport = append(r.Preimport, v); return nil }},
	}}, text)
	return r, err
}

// fileKeys are those of one of files.
func fileKeys(root *os.Root, r *imagebuild.Recipe) *element {
	var f imagebuild.File
	from := ""
	return &element{
		keys: map[string]*key{
			"path":       scalar(func(v string) error { f.Path = v; return imagebuild.CheckPath(v) }),
			"from":       scalar(func(v string) error { from = v; return nil }),
			"content":    scalar(func(v string) error { f.Data = []byte(v); return nil }),
			"executable": scalar(yesOrNo(&f.Executable)),
		},
		done: func() (err error) {
			if f.Path == "" || (from == "") == (f.Data == nil) {
				return glovebox.Errorf(glovebox.CodeInvalid, "write {path: /etc/name, from: FILE} or {path: /etc/name, content: TEXT}",
					"a file has a path, and either from or content")
			}
			if from != "" {
				if f.Data, err = readBeside(root, from); err != nil {
					return err
				}
			}
			r.Files = append(r.Files, f)
			return nil
		},
	}
}

// Bounds of what a build file is and names.
const (
	maxBuildFile = 256 << 10
	maxBeside    = 16 << 20
)

// readBeside reads a file beneath the folder of the build file, which no link leads out of.
func readBeside(root *os.Root, name string) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "name a file beside the build file, without .. or links that lead out",
				"%q cannot be read from the folder of the build file", short(name))
		}
		return nil, fileError(name, err)
	}
	defer f.Close()
	return readAtMost(f, name, maxBeside)
}

func readBuildFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fileError(name, err)
	}
	defer f.Close()
	return readAtMost(f, name, maxBuildFile)
}

// readAtMost reads a regular file that is not too large.
func readAtMost(f *os.File, name string, most int64) ([]byte, error) {
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() > most) {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "name a regular file that is smaller",
			"%q is no regular file of at most %d bytes", short(name), most)
	}
	if err != nil {
		return nil, fileError(name, err)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// locked reads the lock file; nil where there is none, or it is to be made anew.
func (b *build) locked() ([]imagebuild.Locked, error) {
	text, err := readBuildFile(b.file + ".lock")
	if b.update || publicCode(err) == glovebox.CodeNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := imagebuild.ParseLock(text)
	if list == nil && err == nil {
		list = []imagebuild.Locked{} // it says that nothing is needed
	}
	return list, err
}

func publicCode(err error) glovebox.Code {
	var e *glovebox.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// progress shows the lines of a log and when they came, made safe for a terminal.
type progress struct {
	mu    sync.Mutex
	to    io.Writer
	begun time.Time
	part  []byte
}

// Write shows whole lines.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const longest = 4096
	for _, c := range b {
		if c != '\n' {
			if p.part = append(p.part, c); len(p.part) < longest {
				continue
			}
		}
		say(p.to, fmt.Sprintf("%4.0f s  %s", time.Since(p.begun).Seconds(), p.part))
		p.part = p.part[:0]
	}
	return len(b), nil
}
