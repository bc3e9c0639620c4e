package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/kernelfile"
)

// Doctor implements glovebox.Admin. It is ready when a request that says nothing about itself would be run: its rung is
// there with every control that it requires, and the trace can be written.
func (e *Engine) Doctor(ctx context.Context) (*glovebox.Report, error) {
	_, leave, err := e.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	r := &glovebox.Report{Machine: machine(), User: fmt.Sprintf("uid %d", os.Getuid())}
	image, imageErr := e.image()
	if imageErr == nil {
		r.Images = []glovebox.Image{image.Report()}
	}
	e.reportImages(ctx, r)
	for _, rung := range []glovebox.Isolation{glovebox.IsolationProcess, glovebox.IsolationGVisor, glovebox.IsolationMicroVM,
		glovebox.IsolationRemote} {
		if d, ok := e.drivers[rung]; ok {
			r.Controls = append(r.Controls, d.Controls(ctx)...)
			continue
		}
		if rung == glovebox.IsolationRemote {
			r.Controls = append(r.Controls, e.other.control(ctx))
			continue
		}
		r.Controls = append(r.Controls, glovebox.Control{Isolation: rung, Name: "driver", Required: true,
			Detail: "this engine has no driver for it", Fix: absentFix(rung)})
	}
	d := e.decide(ctx, self("doctor"), glovebox.Request{Code: "pass"})
	recordErr := e.readRecord(ctx)
	rung, limits := d.Grant.Isolation, d.Grant.Limits
	if !d.Allow { // what it would need is told all the same
		rung, limits = e.policy().Needs(glovebox.TrustInfluenced), e.policy().DefaultLimits()
	}
	r.Default = d
	memory, memoryErr := e.budget(limits.Memory, e.overhead(rung))
	for _, err := range []error{imageErr, recordErr, memoryErr} {
		if err != nil && publicError(err).(*glovebox.Error).Code == glovebox.CodeInternal {
			e.cfg.Log.Error("examine the machine", "err", err) // the report says that the log names the cause
		}
	}
	budget := part("memory_budget", memoryErr)
	if memoryErr == nil {
		budget.Detail = memory
	}
	r.Controls = append(r.Controls, part("image", imageErr), part("data_dir", recordErr),
		budget)
	r.Controls = append(r.Controls, e.roomControls(limits)...)
	if e.network != nil {
		r.Controls = append(r.Controls, append(e.network.controls(ctx), ruleControl(e.policy()))...)
	}
	r.Ready = d.Allow && !slices.ContainsFunc(r.Controls, func(c glovebox.Control) bool {
		return (c.Isolation == rung || c.Isolation == "") && c.Required && !c.Available
	})
	return r, nil
}

// budget says how much memory runs have together, or why a run with this limit has none.
func (e *Engine) budget(limit, beside glovebox.Size) (string, error) {
	a, err := e.memory()
	if err != nil {
		return "", err
	}
	if err := a.Fits(limit, beside); err != nil {
		return "", err
	}
	taken, err := a.Taken()
	if err != nil {
		return "", glovebox.Internal("read the memory in use", err)
	}
	return fmt.Sprintf("%v for all runs together, %v of it taken", a.Budget(), taken), nil
}

// roomControls compare what is free now with what a run may use that says nothing of it. Nothing is refused for lack of it,
// which may be over by the time of a run, and nobody else tells.
func (e *Engine) roomControls(l glovebox.Limits) []glovebox.Control {
	memory, disk, err := e.free()
	if err != nil {
		failed := part("free memory and disk", glovebox.Internal("read what is free", err))
		failed.Required = false
		return []glovebox.Control{failed}
	}
	room := func(name string, free, want glovebox.Size, fix string) glovebox.Control {
		c := glovebox.Control{Name: name, Available: free >= want, Detail: free.String()}
		if !c.Available {
			c.Detail, c.Fix = fmt.Sprintf("%v, and a run may use %v unless it says otherwise", free, want), fix
		}
		return c
	}
	return []glovebox.Control{
		room("free memory", memory, l.Memory,
			fmt.Sprintf("end other programs, or set policy.limits.default.memory in glovebox.yaml to %v or less",
				memory/glovebox.MiB*glovebox.MiB)),
		room("free disk", disk, l.Disk+l.Output,
			"make room on the file system of data_dir, or set data_dir to a folder of another"),
	}
}

// machineMemory is the memory of the machine that programs can have without others losing theirs, and all there is.
func machineMemory() (available, all glovebox.Size, err error) {
	text, err := kernelfile.Read("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	for name, size := range map[string]*glovebox.Size{"MemAvailable:": &available, "MemTotal:": &all} {
		_, rest, ok := strings.Cut(text, name)
		var kib int64
		if _, err := fmt.Sscan(rest, &kib); err != nil || !ok {
			return 0, 0, errors.New("the kernel does not tell how much memory is available")
		}
		*size = glovebox.Size(kib << 10)
	}
	return available, all, nil
}

// freeRoom is the memory of the machine that programs can have, and what is left to this user on the file system of the
// data_dir, or of the nearest folder above it that there is.
func (e *Engine) freeRoom() (memory, disk glovebox.Size, err error) {
	memory, _, err = machineMemory()
	if err != nil {
		return 0, 0, err
	}
	var fs unix.Statfs_t
	for dir := e.cfg.DataDir; ; dir = filepath.Dir(dir) {
		if err = unix.Statfs(dir, &fs); err == nil || !errors.Is(err, unix.ENOENT) || dir == "/" {
			break
		}
	}
	if err != nil {
		return 0, 0, err
	}
	return memory, glovebox.Size(int64(fs.Bavail) * fs.Bsize), nil
}

// readRecord says why the trace cannot be used, also where it opens and what is in it cannot be read, or nothing can be
// signed.
func (e *Engine) readRecord(ctx context.Context) error {
	t, err := e.record()
	if err != nil {
		return err
	}
	if _, err = t.List(ctx, "local", glovebox.TraceQuery{Limit: 1}); err != nil {
		return err
	}
	return t.Ready()
}

// part is a control, of every rung alike, that is there unless err says why not.
func part(name string, err error) glovebox.Control {
	c := glovebox.Control{Name: name, Available: err == nil, Required: true, Detail: "usable"}
	var e *glovebox.Error
	if errors.As(err, &e) {
		c.Detail, c.Fix = e.Public, e.Fix
	} else if err != nil {
		c.Detail, c.Fix = "it failed inside Glovebox", "the engine's log names the cause"
	}
	return c
}

func machine() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return runtime.GOOS + "/" + runtime.GOARCH
	}
	return strings.Join([]string{runtime.GOOS + "/" + runtime.GOARCH, "kernel", unix.ByteSliceToString(u.Release[:])}, " ")
}
