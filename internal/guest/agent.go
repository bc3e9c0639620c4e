package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/internal/guestlink"
)

// agent serves one sandbox, ever.
type agent struct {
	link *guestlink.Link

	mu       sync.Mutex
	box      driver.Sandbox
	held     driver.HeldSandbox // the same, with an interpreter that waits
	template driver.Template
	started  driver.Process
	streams  sync.WaitGroup
}

var errState = errors.New("not now: the sandbox is not there, or is there already")

// serve answers one call of the driver's.
func (a *agent) serve(ctx context.Context, method string, args []byte) (any, error) {
	switch method {
	case guestlink.MethodHello:
		return guestlink.Hello{Version: guestlink.Version}, nil
	case guestlink.MethodResync:
		return decoded(args, resync)
	case guestlink.MethodStart, guestlink.MethodHold, guestlink.MethodTemplate, guestlink.MethodFork:
		return decoded(args, func(s guestlink.Start) (any, error) { return nil, a.start(ctx, method, s) })
	case guestlink.MethodResize:
		return decoded(args, func(l glovebox.Limits) (any, error) {
			h, err := a.holds()
			if err != nil {
				return nil, err
			}
			return nil, h.Resize(l)
		})
	case guestlink.MethodInputs:
		return decoded(args, func(i guestlink.Inputs) (any, error) { return nil, a.takeInputs(i) })
	case guestlink.MethodAttach:
		return decoded(args, func(n guestlink.Attach) (any, error) { return nil, a.attach(ctx, n) })
	case guestlink.MethodExec:
		return decoded(args, func(e guestlink.Exec) (any, error) { return a.exec(ctx, e) })
	case guestlink.MethodOpen:
		return decoded(args, func(o guestlink.Open) (any, error) { return a.open(o) })
	case guestlink.MethodLost:
		h, err := a.holds()
		if err != nil {
			return nil, err
		}
		select {
		case <-h.Lost():
		case <-ctx.Done():
		}
		return nil, nil
	}
	return a.serveProcess(ctx, method)
}

// decoded reads the arguments of a call for what serves it.
func decoded[T any](args []byte, serve func(T) (any, error)) (any, error) {
	var v T
	if err := guestlink.Decode(args, &v); err != nil {
		return nil, err
	}
	return serve(v)
}

// serveProcess answers a call about what runs.
func (a *agent) serveProcess(ctx context.Context, method string) (any, error) {
	a.mu.Lock()
	box, p := a.box, a.started
	a.mu.Unlock()
	if method == guestlink.MethodDisk && box != nil {
		return box.Disk()
	}
	if p == nil {
		return nil, errState
	}
	switch method {
	case guestlink.MethodExited:
		select {
		case <-p.Exited():
			return p.Exit(), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case guestlink.MethodSample:
		return p.Sample()
	case guestlink.MethodKill:
		return nil, p.Kill(ctx)
	}
	return nil, fmt.Errorf("unknown method %q", method)
}

func (a *agent) holds() (driver.HeldSandbox, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held == nil {
		return nil, errState
	}
	return a.held, nil
}

// start makes the sandbox, in one of the ways of package driver.
func (a *agent) start(ctx context.Context, method string, s guestlink.Start) (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.box != nil || a.template != nil && method != guestlink.MethodFork || s.Hold == nil && method == guestlink.MethodHold {
		return errState
	}
	for i := range s.Spec.Root.Mounts {
		m := &s.Spec.Root.Mounts[i]
		m.Source = filepath.Join(imageDir, m.Target)
	}
	if s.Spec.Inputs, err = a.inputs(s); err != nil {
		return err
	}
	if method == guestlink.MethodFork {
		if a.template == nil {
			return errState
		}
		a.held, err = a.template.Fork(ctx, s.Spec)
		a.box = boxOf(a.held, err)
		return err
	}
	d, err := newDriver(s.OnDisk)
	if err != nil {
		return err
	}
	switch method {
	case guestlink.MethodTemplate:
		a.template, err = d.Template(ctx, s.Spec, *s.Hold)
	case guestlink.MethodHold:
		a.held, err = d.Hold(ctx, s.Spec, *s.Hold)
		a.box = boxOf(a.held, err)
	default:
		a.box, err = d.Start(ctx, s.Spec)
	}
	return err
}

// boxOf is h where there is one.
func boxOf(h driver.HeldSandbox, err error) driver.Sandbox {
	if err != nil {
		return nil
	}
	return h
}

// startLimit is more than the driver waits, which knows whether the machine is emulated.
const startLimit = time.Hour

// newDriver makes the driver of the process rung within the guest.
func newDriver(onDisk bool) (*process.Driver, error) {
	cfg := process.Config{Init: guestlink.InitPath, Cgroup: "/glovebox", RuntimeDir: "/run/glovebox", ScratchDir: scratchDir,
		StartLimit: startLimit}
	if onDisk {
		var err error
		if cfg.WorkDisk, err = disk(guestlink.SerialWork); err != nil {
			return nil, err
		}
	}
	return process.New(cfg)
}

// inputs is the folder of the sandbox's inputs. A template's is above those of its forks.
func (a *agent) inputs(s guestlink.Start) (string, error) {
	switch {
	case s.Spec.Inputs == "":
		return "", nil
	case s.Inputs:
		device, err := disk(guestlink.SerialIn)
		if err != nil {
			return "", err
		}
		dir := filepath.Join(inputsDir, "disk")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		if err := unix.Mount(device, dir, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOEXEC, ""); err != nil {
			return "", fmt.Errorf("mount inputs: %w", err)
		}
		return dir, nil
	}
	late := lateDir
	if s.Template {
		late = inputsDir
	}
	return late, os.MkdirAll(late, 0o755)
}

// exec releases the code to the sandbox.
func (a *agent) exec(ctx context.Context, e guestlink.Exec) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.box == nil {
		return nil, errState
	}
	cmd := driver.Command{Argv: texts(e.Argv), Env: texts(e.Env), Dir: e.Dir, CodeName: e.CodeName}
	if e.HasCode {
		cmd.Code = e.Code
		if cmd.Code == nil {
			cmd.Code = []byte{}
		}
	}
	var stdin *guestlink.Reader
	if e.HasStdin {
		var err error
		if stdin, err = a.link.ReaderOf(e.Stdin); err != nil {
			return nil, err
		}
		cmd.Stdin = stdin
	}
	stdout, err := a.link.WriterOf(e.Stdout)
	if err != nil {
		return nil, err
	}
	stderr, err := a.link.WriterOf(e.Stderr)
	if err != nil {
		return nil, errors.Join(err, stdout.Close())
	}
	p, err := a.box.Exec(ctx, cmd)
	if err != nil {
		err = errors.Join(err, stdout.Close(), stderr.Close())
		if stdin != nil {
			err = errors.Join(err, stdin.Close())
		}
		return nil, err
	}
	a.started = p
	a.streams.Go(func() { pump(stdout, p.Stdout()) })
	a.streams.Go(func() { pump(stderr, p.Stderr()) })
	if stdin != nil {
		a.streams.Go(func() {
			<-p.Exited()
			_ = stdin.Close() // a link that has ended needs no word
		})
	}
	return guestlink.Executed{Posture: p.Posture()}, nil
}

// pump copies one stream of the program to the driver.
func pump(to *guestlink.Writer, from io.Reader) {
	// What is not sent because nobody reads, or the link has ended, nobody misses.
	_, _ = io.Copy(struct{ io.Writer }{to}, from)
	_ = to.Close()
}

func texts(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}

// open hands out what the process rung opened beneath /outputs.
func (a *agent) open(o guestlink.Open) (any, error) {
	a.mu.Lock()
	box := a.box
	a.mu.Unlock()
	if box == nil {
		return nil, errState
	}
	f, err := box.Open(string(o.Path))
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	to, err := a.link.WriterOf(o.Stream)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	a.streams.Go(func() {
		defer f.Close()
		defer to.Close()
		// A copy that is cut off is one whose size is wrong, which the driver sees.
		if info.IsDir() {
			_ = sendNames(to, f)
		} else {
			_ = sendParts(to, f, info.Size())
		}
	})
	return guestlink.Opened{Folder: info.IsDir(), Size: info.Size(), Perm: uint32(info.Mode().Perm())}, nil
}

func sendNames(to io.Writer, dir *os.File) error {
	for {
		names, err := dir.Readdirnames(256)
		if len(names) > 0 {
			if _, err := io.WriteString(to, strings.Join(names, "\x00")+"\x00"); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}
