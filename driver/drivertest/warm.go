package drivertest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"glovebox"
	"glovebox/driver"
)

// Sizes implements driver.Warmer.
func (f *Fake) Sizes(hold driver.Hold) driver.Sizes {
	return driver.Sizes{Alone: hold.Memory, Copy: 64 * glovebox.MiB, Template: max(128*glovebox.MiB, hold.Memory)}
}

// Hold implements driver.Warmer.
func (f *Fake) Hold(ctx context.Context, spec driver.Spec, hold driver.Hold) (driver.HeldSandbox, error) {
	if err := f.step("hold"); err != nil {
		return nil, err
	}
	return f.hold(ctx, spec, hold, nil)
}

func (f *Fake) hold(ctx context.Context, spec driver.Spec, hold driver.Hold, of *fakeTemplate) (driver.HeldSandbox, error) {
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("hold: %w", ctx.Err())
	case hold.Lang == "" || hold.Memory <= 0 || len(hold.Command.Argv) == 0 || hold.Command.Code != nil ||
		hold.Command.Stdin != nil:
		return nil, fmt.Errorf("hold: %+v is no interpreter that waits", hold)
	}
	box, err := f.box(spec)
	if err != nil {
		return nil, err
	}
	h := &fakeHeld{fakeBox: box, hold: hold, of: of, lost: make(chan struct{})}
	f.mu.Lock()
	if f.held == nil {
		f.held = map[string]*fakeHeld{}
	}
	f.held[spec.ID] = h
	f.mu.Unlock()
	if of != nil && over(of.ended) { // meanwhile
		h.lose()
	}
	return h, nil
}

// Template implements driver.Warmer.
func (f *Fake) Template(ctx context.Context, spec driver.Spec, hold driver.Hold) (driver.Template, error) {
	if err := f.step("template"); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Contains(f.live, spec.ID) {
		return nil, fmt.Errorf("template: %s lives", spec.ID)
	}
	f.live = append(f.live, spec.ID)
	t := &fakeTemplate{fake: f, spec: spec, hold: hold, ended: make(chan struct{})}
	if f.templates == nil {
		f.templates = map[string]*fakeTemplate{}
	}
	f.templates[spec.ID] = t
	return t, nil
}

// Held lists the ids of the sandboxes whose interpreter waits for its code.
func (f *Fake) Held() (ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range f.live {
		if h := f.held[id]; h != nil && !h.used() {
			ids = append(ids, id)
		}
	}
	return ids
}

// Templates lists the ids of the templates that are not closed.
func (f *Fake) Templates() (ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range f.live {
		if f.templates[id] != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// Orphans lists the sandboxes that were not closed when the template of which they are forks was.
func (f *Fake) Orphans() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.orphans)
}

// Lose ends the interpreter of a held sandbox, or a template with all its forks.
func (f *Fake) Lose(id string) {
	f.mu.Lock()
	h, t := f.held[id], f.templates[id]
	f.mu.Unlock()
	if h != nil {
		h.lose()
	}
	if t != nil {
		t.end()
	}
}

type fakeTemplate struct {
	fake  *Fake
	spec  driver.Spec
	hold  driver.Hold
	once  sync.Once
	ended chan struct{}

	mu     sync.Mutex
	closed bool
}

func (t *fakeTemplate) Fork(ctx context.Context, spec driver.Spec) (driver.HeldSandbox, error) {
	if err := t.fake.step("fork"); err != nil {
		return nil, err
	}
	below := t.spec.Inputs != "" && strings.HasPrefix(spec.Inputs, t.spec.Inputs+string(filepath.Separator))
	switch {
	case over(t.ended):
		return nil, errors.New("fork: the template has ended")
	case !reflect.DeepEqual(spec.Root, t.spec.Root) || spec.Inputs != "" && !below:
		return nil, errors.New("fork: another root than the template's, or inputs that are not below its own")
	}
	return t.fake.hold(ctx, spec, t.hold, t)
}

func (t *fakeTemplate) Origin() string {
	if t.fake.Restores {
		return driver.StartRestored
	}
	return driver.StartFork
}

func (t *fakeTemplate) Ended() <-chan struct{} { return t.ended }

func (t *fakeTemplate) end() {
	t.once.Do(func() { close(t.ended) })
	for _, h := range t.forks() {
		h.lose()
	}
}

// forks are those that are not closed.
func (t *fakeTemplate) forks() (forks []*fakeHeld) {
	t.fake.mu.Lock()
	defer t.fake.mu.Unlock()
	for _, id := range t.fake.live {
		if h := t.fake.held[id]; h != nil && h.of == t {
			forks = append(forks, h)
		}
	}
	return forks
}

func (t *fakeTemplate) Close(context.Context) error {
	t.mu.Lock()
	closed := t.closed
	t.closed = true
	t.mu.Unlock()
	if closed {
		return nil
	}
	err := t.fake.step("end")
	for _, h := range t.forks() {
		t.fake.mu.Lock()
		t.fake.orphans = append(t.fake.orphans, h.spec.ID)
		t.fake.mu.Unlock()
	}
	t.end()
	t.fake.mu.Lock()
	defer t.fake.mu.Unlock()
	t.fake.live = slices.DeleteFunc(t.fake.live, func(id string) bool { return id == t.spec.ID })
	return err
}

type fakeHeld struct {
	*fakeBox
	hold driver.Hold
	of   *fakeTemplate // nil: of none
	once sync.Once
	lost chan struct{}
}

func (h *fakeHeld) Lost() <-chan struct{} { return h.lost }

// lose ends the interpreter, and what it runs.
func (h *fakeHeld) lose() {
	h.once.Do(func() { close(h.lost) })
	h.mu.Lock()
	p := h.proc
	h.mu.Unlock()
	if p != nil {
		p.lose()
	}
}

func (h *fakeHeld) used() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.proc != nil || over(h.lost)
}

func (h *fakeHeld) Resize(limits glovebox.Limits) error {
	if err := h.fake.step("resize"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	same := h.spec.Limits
	same.Memory, same.Processes, same.Wall, same.CPU = limits.Memory, limits.Processes, limits.Wall, limits.CPU
	same.Egress, same.Output, same.View = limits.Egress, limits.Output, limits.View
	if h.proc != nil || same != limits {
		return fmt.Errorf("resize: %+v cannot become %+v", h.spec.Limits, limits)
	}
	h.spec.Limits = limits
	return nil
}

func (h *fakeHeld) Exec(ctx context.Context, cmd driver.Command) (driver.Process, error) {
	want := h.hold.Command
	if len(cmd.Argv) < len(want.Argv) || !slices.Equal(cmd.Argv[:len(want.Argv)], want.Argv) || cmd.Dir != want.Dir ||
		cmd.CodeName != want.CodeName {
		return nil, fmt.Errorf("exec: %+v is not what is held: %+v", cmd, want)
	}
	if over(h.lost) {
		return nil, errors.New("exec: the interpreter has ended")
	}
	p, err := h.fakeBox.Exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	go func() { <-p.Exited(); h.once.Do(func() { close(h.lost) }) }()
	return p, nil
}

func (h *fakeHeld) Close(ctx context.Context) error {
	defer h.once.Do(func() { close(h.lost) })
	err := h.fakeBox.Close(ctx)
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	if h.fake.held[h.spec.ID] == h { // the id may be another's by now
		delete(h.fake.held, h.spec.ID)
	}
	return err
}

func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

var _ driver.Warmer = (*Fake)(nil)
