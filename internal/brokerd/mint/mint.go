package mint

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"glovebox"
	"glovebox/internal/broker"
)

// Bounds of one mint and of what a run keeps.
const (
	mintTime   = 15 * time.Second
	revokeTime = 5 * time.Second
	failedTime = 3 * time.Second // a service that refused is not asked again before
	renewTime  = time.Minute     // a token that was refused this soon after it was renewed is not renewed again
)

// Config is what a Mint is made of. It is read by New only.
type Config struct {
	// Tokens are the ways to make tokens, by the secret's name. They were checked.
	Tokens map[string]*broker.Tokens
	// Source reads the value of a secret's source: each time it is asked, so that a value that was changed is seen. Required
	// unless no kind needs one.
	Source func(ctx context.Context, name string) ([]byte, error)
	// Dial connects to HOST:PORT of a token service. private are the private networks in which it may lie. Required.
	Dial func(ctx context.Context, address string, private []netip.Prefix) (net.Conn, error)
	// Roots are who a token service's certificate may be of; nil means the system's.
	Roots *x509.CertPool
	// KeyFile is where the key of caller tokens is kept; it is made at first use.
	KeyFile string
	// Log gets what goes wrong beside the answers, with causes; nil discards.
	Log *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Mint makes short-lived tokens for runs. Methods are safe for concurrent use.
type Mint struct {
	cfg   Config
	kinds map[string]kind
	key   *callerKey
}

// Run is whom tokens are for.
type Run struct{ ID, Tenant, Rule string }

// kind is one protocol by which tokens of one secret are made.
type kind interface {
	// mint makes a token. An *glovebox.Error says who refused and why.
	mint(ctx context.Context, run Run) (Token, error)
	// revoke ends a token. It returns errIrrevocable where the protocol has no word for that.
	revoke(ctx context.Context, t Token) error
}

var errIrrevocable = errors.New("the protocol revokes nothing")

// New makes a Mint. Close of its leases is all that it needs.
func New(cfg Config) (*Mint, error) {
	if cfg.Dial == nil {
		return nil, errors.New("new mint: Dial is missing")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m := &Mint{cfg: cfg, kinds: map[string]kind{}, key: &callerKey{file: cfg.KeyFile}}
	for name, t := range cfg.Tokens {
		m.kinds[name] = m.kind(name, t)
	}
	return m, nil
}

func (m *Mint) kind(name string, t *broker.Tokens) kind {
	s := service{name: name, now: m.cfg.Now, source: m.cfg.Source, client: m.client(t.AllowPrivate)}
	switch {
	case t.OAuth2 != nil && t.OAuth2.Refresh:
		return &refresher{service: s, cfg: t.OAuth2, turn: make(chan struct{}, 1)}
	case t.OAuth2 != nil:
		return &clientCredentials{s, t.OAuth2}
	case t.Exchange != nil:
		return &exchange{s, t.Exchange}
	case t.GitHubApp != nil:
		return &githubApp{s, t.GitHubApp}
	case t.STS != nil:
		return &assumedRole{s, t.STS}
	}
	return &caller{s, t.Caller, m.key}
}

// Lease is what one run is lent: its tokens, which no other run gets. Methods are safe for concurrent use. The caller closes
// it when the run has ended.
type Lease struct {
	mint *Mint
	run  Run

	mu     sync.Mutex
	slots  map[string]*slot
	closed bool
	live   []Token // all that may still be good
}

// slot is the tokens of one secret. Whoever has turn may look at the rest.
type slot struct {
	turn    chan struct{}
	token   Token
	made    bool
	renewed time.Time // when a refused token was replaced last
	old     []Token   // handed out before, perhaps still good
	failed  time.Time
	err     error
}

// Open begins to lend to a run. Nothing is minted before somebody asks.
func (m *Mint) Open(run Run) *Lease { return &Lease{mint: m, run: run, slots: map[string]*slot{}} }

// Has reports whether tokens are made for a secret.
func (m *Mint) Has(name string) bool { return m.kinds[name] != nil }

// enter waits for the turn of a slot; leave ends it.
func (l *Lease) enter(ctx context.Context, name string) (*slot, error) {
	l.mu.Lock()
	s := l.slots[name]
	if s == nil {
		s = &slot{turn: make(chan struct{}, 1)}
		l.slots[name] = s
	}
	l.mu.Unlock()
	select {
	case s.turn <- struct{}{}:
		return s, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *slot) leave() { <-s.turn }

// Token is the run's token of a secret: the one that was minted, or a new one where 80 % of its life have passed. An
// error is a *glovebox.Error: then there is none, and nothing must be sent in its place.
func (l *Lease) Token(ctx context.Context, name string) (Token, error) {
	s, err := l.enter(ctx, name)
	if err != nil {
		return Token{}, glovebox.Internal("wait for a token", err)
	}
	defer s.leave()
	if s.made && l.mint.cfg.Now().Before(s.token.fresh) {
		return s.token, nil
	}
	return l.next(ctx, name, s)
}

// Renew replaces a token that a service refused (401). A token is replaced once: where the new one is refused too the
// service does not want what is lent, and asking for more would not help.
func (l *Lease) Renew(ctx context.Context, name string, refused Token) (Token, error) {
	s, err := l.enter(ctx, name)
	if err != nil {
		return Token{}, glovebox.Internal("wait for a token", err)
	}
	defer s.leave()
	now := l.mint.cfg.Now()
	switch {
	case s.made && s.token.Value != refused.Value && now.Before(s.token.fresh):
		return s.token, nil // somebody else did
	case !s.renewed.IsZero() && now.Sub(s.renewed) < renewTime:
		return Token{}, glovebox.Errorf(glovebox.CodeUnavailable,
			"see whether what the configuration asks for is enough: scopes, permissions, audience",
			"the token of secret %s was refused again right after it was minted anew", name)
	}
	if s.made {
		s.old, s.made = append(s.old, s.token), false
	}
	t, err := l.next(ctx, name, s)
	if err == nil {
		s.renewed = now
	}
	return t, err
}

// next mints a token into the slot. A request that goes away does not stop that: others wait for the same token, and one
// that was made must be known, to be revoked.
func (l *Lease) next(ctx context.Context, name string, s *slot) (Token, error) {
	k, now := l.mint.kinds[name], l.mint.cfg.Now()
	switch {
	case k == nil:
		return Token{}, glovebox.Errorf(glovebox.CodeInvalid, "add mint to the secret",
			"no tokens are made for secret %q", name)
	case l.ended():
		return Token{}, glovebox.Errorf(glovebox.CodeDenied, "start another run", "the run to which %s was lent has ended", name)
	case s.err != nil && now.Sub(s.failed) < failedTime:
		return l.stillGood(s, now, s.err)
	}
	ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), mintTime,
		fmt.Errorf("the token service did not answer within %v", mintTime))
	defer stop()
	t, err := k.mint(ctx, l.run)
	now = l.mint.cfg.Now()
	if err == nil && t.Expires.Sub(now) < leastLife {
		err = glovebox.Errorf(glovebox.CodeUnavailable, "compare this machine's clock with the service's",
			"the token for secret %s had expired when it came", name)
	}
	if err != nil {
		s.failed, s.err = now, asError(name, err)
		l.mint.cfg.Log.Warn("mint a token", "secret", name, "run", l.run.ID, "err", s.err)
		return l.stillGood(s, now, s.err)
	}
	if s.made {
		s.old = append(s.old, s.token)
	}
	s.old = withoutExpired(s.old, now)
	s.token, s.made, s.err = t, true, nil
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live = append(withoutExpired(l.live, now), t)
	return t, nil
}

func withoutExpired(tokens []Token, now time.Time) []Token {
	return slices.DeleteFunc(tokens, func(t Token) bool { return !now.Before(t.Expires) })
}

func (l *Lease) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// stillGood is the token at hand where a new one could not be had before this one ends.
func (l *Lease) stillGood(s *slot, now time.Time, err error) (Token, error) {
	if s.made && s.token.Expires.Sub(now) > leastLife {
		return s.token, nil
	}
	return Token{}, err
}

// Secrets are the values of all tokens that the run was lent and that may still be good, for whoever looks for them in
// answers.
func (l *Lease) Secrets() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, t := range l.live {
		all = append(all, t.Secrets()...)
	}
	return all
}

// Close revokes what the run was lent, where the protocol can, all at once. Nothing is minted for it any more. An error
// names what is still good, and until when.
func (l *Lease) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	slots := maps.Clone(l.slots)
	l.mu.Unlock()
	errs := make([]error, 0, len(slots))
	var mu sync.Mutex
	var all sync.WaitGroup
	for name := range slots {
		all.Go(func() {
			if err := l.end(ctx, name); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// end empties a slot and revokes its tokens.
func (l *Lease) end(ctx context.Context, name string) error {
	s, err := l.enter(ctx, name)
	if err != nil {
		return fmt.Errorf("revoke the tokens of secret %s: %w", name, err)
	}
	defer s.leave()
	tokens := s.old
	if s.made {
		tokens = append(tokens, s.token)
	}
	s.made, s.old, s.token = false, nil, Token{}
	var errs []error
	for _, t := range tokens {
		if !l.mint.cfg.Now().Before(t.Expires) {
			continue
		}
		ctx, stop := context.WithTimeout(ctx, revokeTime)
		err := l.mint.kinds[name].revoke(ctx, t)
		stop()
		if err != nil && !errors.Is(err, errIrrevocable) {
			errs = append(errs, fmt.Errorf("revoke a token of secret %s, which is good until %s: %w", name,
				t.Expires.UTC().Format(time.RFC3339), err))
		}
	}
	return errors.Join(errs...)
}

// asError is err as what a caller may be told.
func asError(name string, err error) error {
	var known *glovebox.Error
	if errors.As(err, &known) {
		return known
	}
	e := glovebox.Errorf(glovebox.CodeUnavailable, "see the broker's log for the cause",
		"no token could be had for secret %s", name)
	e.Err = err
	return e
}
