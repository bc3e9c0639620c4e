// Package cleanup is the undo stack: what a function acquires it pushes the undo of on the next line, and on the way out
// either everything is undone in reverse order or, when all went well, the stack is released.
//
//	var undo cleanup.Stack
//	defer undo.Run(context.WithoutCancel(ctx))
//	f := acquire()
//	undo.Push("release f", f.Release)
//	…
//	undo.Release() // all went well: keep what was acquired
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Stack holds undo steps, last in, first out. The zero value is empty and ready. Its methods are safe for concurrent use; a
// Stack must not be copied after its first use.
type Stack struct {
	mu    sync.Mutex
	steps []step
}

type step struct {
	name string
	undo func(context.Context) error
}

// Push adds a step that Run will take before those pushed earlier. name says what is undone ("unmount /tmp") and begins the
// step's error. A step may push more: they run next.
func (s *Stack) Push(name string, undo func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, step{name, undo})
}

// Run takes every step, each one once however often and from wherever Run is called, and joins their errors with the steps'
// names. A step that fails or panics does not keep the others from running; a panic is an error like any other. ctx is
// passed on and never keeps a step from being taken: give it a deadline of its own and no cancellation from outside.
func (s *Stack) Run(ctx context.Context) error {
	var errs []error
	for {
		top, ok := s.pop()
		if !ok {
			return errors.Join(errs...)
		}
		if err := top.run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", top.name, err))
		}
	}
}

// Release forgets all steps without taking them: what they would undo is to stay.
func (s *Stack) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = nil
}

func (s *Stack) pop() (step, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.steps) == 0 {
		return step{}, false
	}
	top := s.steps[len(s.steps)-1]
	s.steps = s.steps[:len(s.steps)-1]
	return top, true
}

func (p step) run(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panicked: %v", r)
		}
	}()
	return p.undo(ctx)
}
