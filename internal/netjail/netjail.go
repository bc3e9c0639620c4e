package netjail

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/admission"
	"glovebox/internal/hostside"
)

// Config says what netds are made of.
type Config struct {
	// Jail makes the sandboxes that they run in: the process rung. It must give descriptors (driver.Command.Files). Required.
	Jail driver.Driver
	// Program is the path of glovebox-netd. Empty: beside the running program.
	Program string
	// Ready is how many are kept started before anybody asks. Zero: none.
	Ready int
	// Memory is the budget that those share with runs; nil: none is kept ready. One that was taken counts no more: whoever
	// takes it holds Memory for it.
	Memory func() (*admission.Admission, error)
	// Log gets what cannot be made; nil discards.
	Log *slog.Logger
}

// The pace of what is made before anybody asks: one at a time, and afterwards a pause some times as long, unless somebody
// has just taken the last.
const (
	pauses      = 3
	courtesy    = 4 * time.Millisecond // to a run that has taken one: another is made once it has begun
	firstPause  = time.Second          // after a failure; it doubles
	lastPause   = time.Minute
	respite     = 2 * time.Second // after runs waited for memory
	noRoomPause = time.Second     // after there was none
	makeLimit   = time.Minute
)

// Jails has netds. It is safe for concurrent use.
type Jails struct {
	cfg  Config
	life context.Context
	end  context.CancelFunc
	wake chan struct{}
	work sync.WaitGroup

	mu      sync.Mutex
	ready   []waiting
	waiters int       // runs that wait for memory
	quiet   time.Time // nothing is made before
	closed  bool
}

// waiting is a netd that nobody has taken.
type waiting struct {
	netd  *Netd
	share *admission.Share
}

// New makes Jails that have nothing ready yet. The caller closes it.
func New(cfg Config) (*Jails, error) {
	if cfg.Jail == nil {
		return nil, errors.New("new netjail: Jail is required")
	}
	if cfg.Program == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find glovebox-netd: %w", err)
		}
		cfg.Program = filepath.Join(filepath.Dir(self), "glovebox-netd")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	j := &Jails{cfg: cfg, wake: make(chan struct{}, 1)}
	j.life, j.end = context.WithCancel(context.Background())
	if cfg.Ready > 0 && cfg.Memory != nil {
		j.work.Go(j.keep)
	}
	return j, nil
}

// Available is nil where a netd can be had, as far as a look tells that starts nothing. Else it is a *glovebox.Error.
func (j *Jails) Available(ctx context.Context) error {
	if unix.Access(j.cfg.Program, unix.X_OK) != nil {
		r := hostside.Missing("glovebox-netd", "", j.cfg.Program)
		return glovebox.Errorf(glovebox.CodeUnavailable, r.Fix, "%s", r.Public)
	}
	return j.cfg.Jail.Available(ctx)
}

// Take returns a netd that nobody else has: one that is ready, else one that is made now. The caller closes it, and holds
// Memory for it until then.
func (j *Jails) Take(ctx context.Context) (*Netd, error) {
	for {
		w, ok := j.pop()
		if !ok {
			break
		}
		if err := w.share.Release(); err != nil {
			j.cfg.Log.Error("give back the memory of a netd", "err", err)
		}
		select {
		case <-w.netd.Ended():
			j.cfg.Log.Warn("a netd ended before anybody took it", "err", w.netd.Why())
			if err := w.netd.Close(context.WithoutCancel(ctx)); err != nil {
				return nil, glovebox.Internal("close a netd", err)
			}
			continue
		default:
			return w.netd, nil
		}
	}
	if err := j.Available(ctx); err != nil {
		return nil, err
	}
	return start(ctx, j.cfg.Jail, j.cfg.Program)
}

// pop takes the oldest that is ready.
func (j *Jails) pop() (w waiting, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.ready) == 0 {
		return w, false
	}
	w, j.ready = j.ready[0], j.ready[1:]
	if due := time.Now().Add(courtesy); j.quiet.Before(due) {
		j.quiet = due
	}
	j.stir()
	return w, true
}

// Ready is how many are ready.
func (j *Jails) Ready() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.ready)
}

// Waits says that a run waits for memory: what is ready ends, and nothing is made, until done is called and for some time
// after. It returns when the memory is given back. done is called once.
func (j *Jails) Waits(ctx context.Context) (done func()) {
	j.mu.Lock()
	j.waiters++
	gone := j.ready
	j.ready = nil
	j.mu.Unlock()
	j.discard(ctx, gone)
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.waiters--
		j.quiet = time.Now().Add(respite)
		j.stir()
	}
}

// discard closes netds that nobody took. The memory of one that cannot be closed stays taken.
func (j *Jails) discard(ctx context.Context, gone []waiting) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer stop()
	for _, w := range gone {
		err := w.netd.Close(ctx)
		if err == nil {
			err = w.share.Release()
		}
		if err != nil {
			j.cfg.Log.Error("close a netd that nobody took", "err", err)
		}
	}
}

// Close ends those that nobody took. Those that were taken are their takers' to close.
func (j *Jails) Close(ctx context.Context) {
	j.end()
	j.work.Wait()
	j.mu.Lock()
	gone := j.ready
	j.ready, j.closed = nil, true
	j.mu.Unlock()
	j.discard(ctx, gone)
}

// stir wakes keep. j.mu is held, or nothing is.
func (j *Jails) stir() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// keep has some ready until Close.
func (j *Jails) keep() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := firstPause; ; {
		select {
		case <-j.life.Done():
			return
		case <-j.wake:
		case <-timer.C:
		}
		need, again := j.due(time.Now())
		if need {
			begun := time.Now()
			switch err := j.add(); {
			case err == nil:
				pause = firstPause
				again = pauses * time.Since(begun)
			case j.life.Err() != nil:
				return
			case errors.Is(err, errNoRoom):
				again = j.rest(noRoomPause)
			default:
				j.cfg.Log.Error("have a netd ready", "err", err)
				again, pause = j.rest(pause), min(2*pause, lastPause)
			}
		}
		timer.Reset(again)
	}
}

// due tells whether one more is to be made now, and else when to look again.
func (j *Jails) due(now time.Time) (need bool, again time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.waiters > 0 || len(j.ready) >= j.cfg.Ready:
		return false, time.Hour // until somebody wakes it
	case now.Before(j.quiet):
		return false, j.quiet.Sub(now)
	}
	return true, 0
}

// rest sees to it that nothing is made for so long, whoever takes one.
func (j *Jails) rest(pause time.Duration) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.quiet = time.Now().Add(pause)
	return pause
}

// errNoRoom says that there is no memory for one more now, which is no failure.
var errNoRoom = errors.New("no memory is free for a netd")

// add makes one.
func (j *Jails) add() error {
	ctx, stop := context.WithTimeout(j.life, makeLimit)
	defer stop()
	if err := j.Available(ctx); err != nil {
		return err
	}
	budget, err := j.cfg.Memory()
	if err != nil {
		return err
	}
	share, err := budget.Try(Memory, false)
	if err == nil && share == nil {
		err = errNoRoom
	}
	if err != nil {
		return err
	}
	n, err := start(ctx, j.cfg.Jail, j.cfg.Program)
	if err == nil {
		if err = n.host.Hello(ctx); err != nil {
			err = n.abandon(ctx, err)
		}
	}
	if errors.Is(err, driver.ErrLeftBehind) {
		return err // its memory stays taken
	}
	if err != nil {
		return errors.Join(err, share.Release())
	}
	w := waiting{n, share}
	j.mu.Lock()
	keep := j.waiters == 0
	if keep {
		j.ready = append(j.ready, w)
	}
	j.mu.Unlock()
	if !keep {
		j.discard(ctx, []waiting{w})
	}
	return nil
}
