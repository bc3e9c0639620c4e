package gvisor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"glovebox/internal/hostside"
	"glovebox/internal/sandboxinit/wire"
	"glovebox/internal/seccomp"
)

// kernel is a running runsc and the init that is its first process.
type kernel struct {
	guest   *hostside.Link
	meter   *os.File // what the guest counts
	said    said     // what runsc printed
	version string   // of gVisor

	killed   bool          // by Kill, and confirmed; guarded by sandbox.mu
	launched chan struct{} // closed when what started it has ended
	how      *wire.Ended   // after that; nil when the guard ended
}

// said keeps the beginning of what runsc prints, which is why it failed.
type said struct {
	also  io.Writer // gets all of it; nil: nobody
	pipes []*os.File
	read  sync.WaitGroup

	mu   sync.Mutex
	text []byte
}

// saidLimit bounds what is kept of it.
const saidLimit = 4 << 10

func (s *said) listen(pipes []*os.File) {
	s.pipes = pipes
	for _, f := range pipes {
		s.read.Go(func() { _, _ = io.Copy(s, f) })
	}
}

// Write keeps the beginning.
func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.also != nil {
		_, _ = s.also.Write(b) // whoever listens is told what can be told
	}
	s.text = append(s.text, b[:min(len(b), saidLimit-len(s.text))]...)
	return len(b), nil
}

func (s *said) error() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.text) == 0 {
		return nil
	}
	return fmt.Errorf("runsc said %.2000q", s.text)
}

func (s *said) close() {
	wire.CloseAll(s.pipes)
	s.read.Wait()
}

// boot starts a kernel and its first process, and waits until that is ready for a program.
func (s *sandbox) boot(ctx context.Context) error {
	if err := s.prepareDevice(ctx); err != nil {
		return err
	}
	k, err := s.launch(ctx)
	if err != nil {
		return fmt.Errorf("start runsc: %w", err)
	}
	s.mu.Lock()
	s.kernel = k
	s.mu.Unlock()
	r, err := k.guest.Await(ctx)
	if err == nil && r.Message.Ready == nil {
		wire.CloseAll(r.Files)
		err = errors.New("unexpected answer")
	}
	if err != nil {
		return errors.Join(fmt.Errorf("start runsc: %w", err), k.said.error())
	}
	if err := s.show(ctx, k); err != nil {
		return err
	}
	return s.note()
}

// launch has the guard execute runsc in the sandbox's control groups, and tells its first process what it is.
func (s *sandbox) launch(ctx context.Context) (_ *kernel, err error) {
	conn, far, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	defer far.Close()
	k := &kernel{launched: make(chan struct{}), version: readVersion(s.driver.cfg.Runsc)}
	k.guest = hostside.NewLink(hostside.LinkConfig{Conn: conn, Ended: s.end, End: s.guard.Kill, Explain: s.explain})
	defer func() {
		if err != nil {
			k.close()
		}
	}()
	init, err := os.Open(s.driver.cfg.Init)
	if err != nil {
		return nil, err
	}
	defer init.Close()
	if k.meter, err = newMeter(); err != nil {
		return nil, err
	}
	filter, err := seccomp.Guest(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	// It waits in the socket until there is somebody to read it.
	if err := k.guest.Send(wire.Message{Setup: &wire.Setup{Guest: true, Network: s.spec.Network, Hostname: hostname,
		Filter: filter, OpenFiles: uint64(s.spec.Limits.OpenFiles), Processes: s.spec.Limits.Processes}}, k.meter); err != nil {
		return nil, err
	}
	s.boots++
	argv := arguments(fmt.Sprintf("sandbox-%d", s.boots), s.spec.Network)
	return k, s.execute(ctx, k, argv, far, init)
}

// execute has the guard execute runsc in the sandbox's control groups, with files as its descriptors from 3 on.
func (s *sandbox) execute(ctx context.Context, k *kernel, argv []string, files ...*os.File) error {
	e := &wire.Exec{Argv: hostside.Bytes(argv), Env: [][]byte{[]byte("PATH=/bin")}, Dir: "/", Files: len(files)}
	files = hostside.Join(e, s.group, files)
	r, err := s.link.Ask(ctx, wire.Message{Exec: e}, files...)
	if err != nil {
		return err
	}
	k.said.listen(r.Files)
	if r.Message.Started == nil {
		return errors.New("unexpected answer")
	}
	if joined, err := s.group.Everywhere(); err != nil || !joined {
		return errors.Join(errors.New("it is not in all of its control groups"), err)
	}
	s.mu.Lock()
	s.launching = k
	s.mu.Unlock()
	return s.link.Send(wire.Message{Go: &wire.Go{}})
}

// close hangs up on a kernel that has ended.
func (k *kernel) close() {
	if k.guest != nil {
		_ = k.guest.Close() // nothing is lost by what cannot be said any more
	}
	k.said.close()
	if k.meter != nil {
		k.meter.Close()
	}
}

// newMeter is memory for counts.
func newMeter() (*os.File, error) {
	fd, err := unix.MemfdCreate("meter", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make meter: %w", err)
	}
	f := os.NewFile(uintptr(fd), "meter")
	if err = f.Truncate(wire.MeterSize); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("make meter: %w", err)
	}
	return f, nil
}

// counts are the program's processes now and at most, and how often one more was refused.
func (k *kernel) counts() (now, most, refused int64) {
	b := make([]byte, wire.MeterSize)
	if _, err := k.meter.ReadAt(b, 0); err != nil {
		return -1, -1, -1
	}
	at := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[8*i:])) }
	return at(0), at(1), at(2)
}
