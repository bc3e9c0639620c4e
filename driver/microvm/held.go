package microvm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/guestlink"
)

// Hold boots a machine and has an interpreter ready in it. The machine stands still until it is needed.
func (d *Driver) Hold(ctx context.Context, spec driver.Spec, hold driver.Hold) (driver.HeldSandbox, error) {
	s, err := d.cold(ctx, spec, &hold)
	if err != nil {
		return nil, err
	}
	if err := s.pause(ctx); err != nil {
		return nil, s.abandon(ctx, err)
	}
	return heldSandbox{s}, nil
}

// heldSandbox is a sandbox with an interpreter that waits for its code.
type heldSandbox struct{ *sandbox }

// pause stops the machine: what waits takes no time of any CPU.
func (s *sandbox) pause(ctx context.Context) error {
	if err := s.machine.qmp.do(ctx, "stop", nil, nil); err != nil {
		return fmt.Errorf("stop the machine: %w", err)
	}
	s.paused = true
	return nil
}

// watch waits for the end of the interpreter that waits, or the machine's.
func (s *sandbox) watch() {
	s.lost = make(chan struct{})
	m := s.machine
	m.work.Go(func() {
		defer close(s.lost)
		// However the call ends, the interpreter is there no more.
		_ = m.link.Call(context.Background(), guestlink.MethodLost, nil, nil)
	})
}

// Lost is closed when the interpreter has ended, or the machine.
func (s heldSandbox) Lost() <-chan struct{} { return s.lost }

// Resize wakes the machine, gives it the inputs of the run, and the program its limits.
func (s heldSandbox) Resize(l glovebox.Limits) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), execLimit, errors.New("the guest did not answer in time"))
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if most := s.room; l.Memory > most {
		return fmt.Errorf("resize sandbox: its machine was made for %v of memory, and %v were granted", most, l.Memory)
	}
	if s.current != nil || onDisk(l) != onDisk(s.spec.Limits) {
		return errors.New("resize sandbox: it is in use, or made for another disk")
	}
	if err := s.wake(ctx); err != nil {
		return s.machine.explain(err)
	}
	if err := s.machine.link.Call(ctx, guestlink.MethodResize, l, nil); err != nil {
		return s.machine.explain(fmt.Errorf("resize sandbox: %w", err))
	}
	s.spec.Limits = l
	return nil
}

// wake lets a machine that stands still go on, with a clock and randomness of now, and the inputs of the run that it is
// for.
func (s *sandbox) wake(ctx context.Context) error {
	if s.paused {
		if err := s.machine.qmp.do(ctx, "cont", nil, nil); err != nil {
			return fmt.Errorf("wake the machine: %w", err)
		}
		s.paused = false
		if err := s.machine.meet(ctx); err != nil {
			return err
		}
	}
	if !s.late || s.spec.Inputs == "" {
		return nil
	}
	s.late = false
	return s.sendInputs(ctx)
}

// lateInputs bounds inputs that come into a machine that was there before them: they lie in its memory. Larger ones come
// with a machine that is booted for them.
const lateInputs = 24 * glovebox.MiB

// sendInputs copies the folder of inputs into the guest.
func (s *sandbox) sendInputs(ctx context.Context) error {
	items, err := walk(ctx, driver.Mount{Source: s.spec.Inputs, Target: "/"}, false)
	if err != nil {
		return fmt.Errorf("look at inputs: %w", err)
	}
	var sum int64
	for _, i := range items {
		sum += 4096 // at least
		if i.info.Mode().IsRegular() {
			sum += i.info.Size()
		}
	}
	if sum > int64(lateInputs) {
		return fmt.Errorf("take inputs: %v of them are more than a machine that is there takes, %v", glovebox.Size(sum),
			lateInputs)
	}
	w := s.machine.link.Writer()
	sent := make(chan error, 1)
	go func() {
		err := sendItems(w, items)
		sent <- errors.Join(err, w.Close())
	}()
	err = s.machine.link.Call(ctx, guestlink.MethodInputs, guestlink.Inputs{Stream: w.ID(), Count: len(items)}, nil)
	if err != nil {
		_ = w.Close() // which ends the goroutine
	}
	if err := errors.Join(err, <-sent); err != nil {
		return fmt.Errorf("take inputs: %w", err)
	}
	return nil
}

// sendItems writes each item: a length, a header of so many bytes, and the file's own.
func sendItems(to io.Writer, items []item) error {
	for _, i := range items {
		h := guestlink.Input{Path: []byte(i.target), Perm: uint32(i.info.Mode().Perm()), UnixNano: i.info.ModTime().UnixNano()}
		var from io.ReadCloser
		switch i.info.Mode().Type() {
		case fs.ModeDir:
			h.Folder = true
		case fs.ModeSymlink:
			target, err := os.Readlink(i.path)
			if err != nil {
				return err
			}
			h.Target = []byte(target)
		default:
			f, err := openSame(i)
			if err != nil {
				return err
			}
			from, h.Size = f, i.info.Size()
		}
		if err := sendItem(to, h, from); err != nil {
			return err
		}
	}
	return nil
}

// sendItem writes one, and closes from.
func sendItem(to io.Writer, h guestlink.Input, from io.ReadCloser) error {
	if from == nil {
		from = io.NopCloser(strings.NewReader(""))
	}
	defer from.Close()
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	b = append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
	if _, err := to.Write(b); err != nil {
		return err
	}
	if _, err := io.CopyN(struct{ io.Writer }{to}, from, h.Size); err != nil {
		return fmt.Errorf("copy %q: %w", h.Path, err)
	}
	return nil
}
