package brokerd

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"glovebox/internal/broker"
	"glovebox/internal/brokerd/mint"
	"glovebox/internal/upstream"
)

// callerKey is the file of the key of caller tokens, in the folder of a broker's own keys.
const callerKey = "caller.key"

// revokeLimit bounds how long the end of a run waits for its tokens to be revoked.
const revokeLimit = 10 * time.Second

// newMint makes what makes tokens, of the secrets that say how.
func (s *server) newMint(setup broker.Setup, roots tlsRoots) (err error) {
	tokens := map[string]*broker.Tokens{}
	for _, spec := range setup.Secrets {
		if spec.Mint != nil {
			tokens[spec.Name] = spec.Mint
		}
	}
	s.mint, err = mint.New(mint.Config{Tokens: tokens, Source: s.source, Dial: s.dialService, Roots: roots.pool,
		KeyFile: filepath.Join(setup.Dir, callerKey), Log: s.log})
	return err
}

// source reads what a secret's source holds, as it is now.
func (s *server) source(ctx context.Context, name string) ([]byte, error) {
	spec := s.specs[name]
	if spec == nil {
		return nil, unreadable(name, "add it to secrets in glovebox.yaml", "there is no such secret", nil)
	}
	text, err := s.store.text(ctx, *spec)
	return []byte(text), err
}

// dialService connects to a token service, which the configuration names: no rule of a run is for it.
func (s *server) dialService(ctx context.Context, address string, private []netip.Prefix) (net.Conn, error) {
	e, err := endpointOf(address)
	if err != nil {
		return nil, err
	}
	return s.dialer.DialContext(ctx, upstream.Target{Host: e.Host, Port: e.Port, AllowPrivate: private})
}

// credential is what is added to a request: a token of the run's own where some are made, else what the source holds.
func (x *exchange) credential(ctx context.Context) (credential, error) {
	b, spec := x.b, x.loan.spec
	if spec.Mint == nil {
		return b.server.store.credential(ctx, spec, false)
	}
	t, err := b.tokens.Token(ctx, spec.Name)
	return ofToken(t), err
}

// another is what may be tried where what was added was refused: an error, or the same, is that there is none.
func (x *exchange) another(ctx context.Context) (credential, error) {
	b, spec := x.b, x.loan.spec
	if spec.Mint == nil { // the value may have been changed at its source
		return b.server.store.credential(ctx, spec, true)
	}
	t, err := b.tokens.Renew(ctx, spec.Name, mint.Token{Value: x.cred.value.Reveal()})
	return ofToken(t), err
}

func ofToken(t mint.Token) credential {
	return credential{value: broker.NewSecret(t.Value), keyID: t.AccessKeyID, session: broker.NewSecret(t.Session)}
}

// revoke ends the run's tokens, where their protocols can.
func (b *binding) revoke() {
	ctx, stop := context.WithTimeout(context.Background(), revokeLimit)
	defer stop()
	if err := b.tokens.Close(ctx); err != nil {
		b.server.log.Warn("revoke tokens", "run", b.run.ID, "err", err)
	}
}
