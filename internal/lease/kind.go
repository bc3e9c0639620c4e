package lease

import (
	"crypto/sha256"
	"log/slog"
	"strconv"
	"time"

	"glovebox"
	"glovebox/driver"
)

// Kind is all that shapes a sandbox before it has code.
type Kind struct {
	// Driver makes the sandboxes.
	Driver driver.Warmer
	// Tenant is whose boundary they are within: no spare and no template ever serves another's.
	Tenant string
	// Trust is where the code comes from. Forks of one template serve one degree of it.
	Trust glovebox.Trust
	// Policy counts the changes of the policy that allowed them. Spares of an earlier count are discarded.
	Policy int
	// Image and Identity are the runtime image's name and exact state. Spares of another state are discarded.
	Image, Identity string
	// Root is what Identity looks like.
	Root driver.Root
	// Limits are those that the sandboxes are made with.
	Limits glovebox.Limits
	// Hold is the interpreter. Its Memory is what it needs for itself; the driver says what that makes.
	Hold driver.Hold
	// Network says that the sandboxes are made with what a network needs from the start.
	Network bool
	// Fork allows forks, which share with each other what an interpreter fixes at its start.
	Fork bool

	holder *[sha256.Size]byte // of Hold but for its memory; nil until it is needed
}

// key is a Kind to compare. Identity stands for Root.
type key struct {
	rung                    glovebox.Isolation
	tenant, image, identity string
	holder                  [sha256.Size]byte
	trust                   glovebox.Trust
	policy                  int
	limits                  glovebox.Limits
	memory                  glovebox.Size
	fork, network           bool
}

// key makes the long part of it once: a run asks for it more than once, under the pool's mutex.
func (k *Kind) key() key {
	if k.holder == nil {
		k.holder = new(k.held())
	}
	return key{k.Driver.Isolation(), k.Tenant, k.Image, k.Identity, *k.holder, k.Trust, k.Policy, k.Limits, k.Hold.Memory,
		k.Fork, k.Network}
}

func (k *Kind) held() [sha256.Size]byte {
	var b []byte
	c := k.Hold.Command
	for _, part := range [][]string{{k.Hold.Lang, c.Dir, c.CodeName}, c.Argv, c.Env, k.Hold.Modules} {
		b = strconv.AppendInt(b, int64(len(part)), 10)
		b = append(b, 0)
		for _, s := range part { // none of them can have a NUL in it
			b = append(append(b, s...), 0)
		}
	}
	return sha256.Sum256(b)
}

// least is what a run must be granted for a spare to serve it.
func (k *Kind) least() glovebox.Size {
	s := k.Driver.Sizes(k.Hold)
	if k.Fork {
		return min(s.Copy, s.Alone)
	}
	return s.Alone
}

// shelf holds the spares of one kind. Its pool's mutex guards it.
type shelf struct {
	kind Kind
	size driver.Sizes  // that the driver says for the kind
	over glovebox.Size // what a sandbox takes beside its limit
	keep bool          // its least number is kept also when nobody asks
	gone bool          // what is made for it is discarded

	spares   []*spare // the oldest first
	making   int
	target   int
	asked    time.Time // last, or when it was made
	low      int       // the fewest spares since
	measured time.Time
	grown    time.Time // when the target last did

	template *template // of which spares are forked now
	next     *template // takes its place when it is spent
	brewing  bool      // another is being made
	held     bool      // the driver has no templates for it: its spares load their modules themselves

	spareTries, templateTries tries

	taken, empty int64
}

// memory is what one more spare may have.
func (s *shelf) memory() glovebox.Size {
	if s.forks() {
		return s.size.Copy
	}
	return s.size.Alone
}

// holds is what one more spare takes.
func (s *shelf) holds() glovebox.Size { return s.memory() + s.over }

func (s *shelf) forks() bool { return s.kind.Fork && !s.held }

// fresh counts the spares that will do for a while yet.
func (s *shelf) fresh(now time.Time) (n int) {
	for _, sp := range s.spares {
		if now.Sub(sp.born) < stale {
			n++
		}
	}
	return n
}

// urgent tells whether somebody asks right now, or nobody could have been served yet.
func (s *shelf) urgent(now time.Time) bool { return now.Sub(s.asked) < quiet }

func (s *shelf) attrs() []any {
	return []any{slog.String("tenant", s.kind.Tenant), slog.String("isolation", string(s.kind.Driver.Isolation())),
		slog.String("lang", s.kind.Hold.Lang), slog.Int("modules", len(s.kind.Hold.Modules))}
}

// tries are those to make a spare, or a template.
type tries struct {
	failures int       // in a row
	again    time.Time // nothing is made before
	noRoom   time.Time // no memory is looked for before
}

// note counts a failure. What fails is tried again after a second, then after twice as long each time, up to a minute.
func (t *tries) note(now time.Time) {
	pause := lastPause
	if t.failures < 6 {
		pause = min(firstPause<<t.failures, lastPause)
	}
	t.failures++
	t.again = now.Add(pause)
}
