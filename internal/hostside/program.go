package hostside

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/cgroup"
	"glovebox/internal/sandboxinit/wire"
)

// undoLimit bounds what is undone after a failure, however the caller's context ended.
const undoLimit = 10 * time.Second

// UndoContext is for what is undone after a failure: it ends after 10 s, and not when ctx does.
func UndoContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), undoLimit, errors.New("it took longer than 10 s"))
}

// Bytes are the words of a command as init takes them.
func Bytes(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}

// Join tells init to have the program of e join the groups of g, and returns files with the descriptors for that after them.
func Join(e *wire.Exec, g *cgroup.Group, files []*os.File) []*os.File {
	if into := g.Unified(); into != nil && !e.Forked {
		e.BornIn, files = true, append(files, into)
	}
	files = append(files, g.Tasks()...)
	e.CgroupFiles = len(g.Tasks())
	if freezer := g.Freezer(); freezer != nil {
		e.Freezer, files = true, append(files, freezer)
	}
	if !g.ControlsCPUs() {
		e.CPUs = g.CPUs()
	}
	return files
}

// Feed copies standard input to the program and closes its pipe. A source that blocks for ever holds the calling goroutine
// until it is read from or closed, and nothing else.
func Feed(to *os.File, from io.Reader) {
	defer to.Close()
	// The program may end or close its end at any moment; what it did not read is nobody's error.
	_, _ = io.Copy(to, from)
}

// CloseStreams closes those of a program's streams that there are and that are open.
func CloseStreams(files ...*os.File) error {
	var errs []error
	for _, f := range files {
		if f == nil {
			continue
		}
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// TrialName is the control that Trial tries.
const TrialName = "a sandbox can be made"

// Trial has d make a sandbox with the usual limits, brings a program to its gate and takes all down again: what no look can
// foresee shows here. The sandbox has no image, so that the program is not found once the gate opens.
func Trial(ctx context.Context, d driver.Driver) glovebox.Control {
	s, err := d.Start(ctx, driver.Spec{
		ID: "doctor_" + strings.ToLower(rand.Text()), Limits: glovebox.Limits{
			CPUs: 1, Memory: 128 * glovebox.MiB, Disk: glovebox.MiB, Files: 64, OpenFiles: 1024, Processes: 128,
		},
	})
	if err == nil {
		_, err = s.Exec(ctx, driver.Command{Argv: []string{"/nothing"}, Env: []string{}, Dir: "/workspace"})
		err = errors.Join(err, s.Close(ctx))
	}
	c := glovebox.Control{Isolation: d.Isolation(), Name: TrialName}
	var known *glovebox.Error
	switch {
	case err == nil:
		c.Available, c.Detail = true, "made and removed"
	case errors.As(err, &known):
		c.Detail, c.Fix = known.Public, known.Fix
	default:
		c.Detail, c.Fix = err.Error(), "mend what is missing above; if nothing is, report this text"
	}
	return c
}
