package netlab

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// A place is a thread that lives in namespaces of its own. Sockets that it makes and processes that it starts are in them.
type place struct {
	work chan func()
	end  chan struct{}
	net  string // the path of its network namespace
}

// newPlace makes a place: setUp is called in it first. The thread ends with close.
func newPlace(flags int, setUp func() error) (*place, error) {
	p := &place{work: make(chan func()), end: make(chan struct{})}
	failed := make(chan error)
	go func() {
		defer close(p.end)
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespaces
		if err := unix.Unshare(flags); err != nil {
			failed <- fmt.Errorf("make namespaces: %w", err)
			return
		}
		p.net = fmt.Sprintf("/proc/%d/task/%d/ns/net", unix.Getpid(), unix.Gettid())
		if err := setUp(); err != nil {
			failed <- err
			return
		}
		failed <- nil
		for f := range p.work {
			f()
		}
	}()
	if err := <-failed; err != nil {
		<-p.end
		return nil, err
	}
	return p, nil
}

// do calls f in the place.
func (p *place) do(f func() error) error {
	done := make(chan error, 1)
	p.work <- func() { done <- f() }
	return <-done
}

func (p *place) close() {
	close(p.work)
	<-p.end
}
