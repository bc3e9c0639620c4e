package mint

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"glovebox"
	"glovebox/internal/broker"
)

// caller makes Glovebox's own tokens, which say which run calls.
type caller struct {
	service
	cfg *broker.CallerTokens
	key *callerKey
}

// callerClaims are what such a token says.
type callerClaims struct {
	jwt.RegisteredClaims
	Tenant string `json:"tenant"`
	Rule   string `json:"rule,omitempty"` // the rule of the policy by which the run was allowed
}

// callerBack is how far a token reaches back, for services whose clocks are late.
const callerBack = 10 * time.Second

func (c *caller) mint(_ context.Context, run Run) (Token, error) {
	key, err := c.key.read()
	if err != nil {
		return Token{}, err
	}
	now := c.now()
	life := cmp.Or(c.cfg.Lifetime, broker.MaxCallerLife)
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, callerClaims{jwt.RegisteredClaims{
		Issuer:    cmp.Or(c.cfg.Issuer, "glovebox"),
		Subject:   run.ID,
		Audience:  jwt.ClaimStrings{c.cfg.Audience},
		ID:        rand.Text(),
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now.Add(-callerBack)),
		ExpiresAt: jwt.NewNumericDate(now.Add(life)),
	}, run.Tenant, run.Rule})
	t.Header["kid"] = keyID(key.Public().(ed25519.PublicKey))
	signed, err := t.SignedString(key)
	if err != nil {
		return Token{}, glovebox.Internal("sign a caller token", err)
	}
	return Token{Value: signed}.lasting(now, life), nil
}

func (c *caller) revoke(context.Context, Token) error { return errIrrevocable }

// jwk is a public key (RFC 8037).
type jwk struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	X   string `json:"x"`
	Kid string `json:"kid"`
	Alg string `json:"alg"`
	Use string `json:"use"`
}

// KeySet is the JSON Web Key Set by which services check caller tokens. The key is made where there is none yet.
func (m *Mint) KeySet() ([]byte, error) {
	key, err := m.key.read()
	if err != nil {
		return nil, err
	}
	public := key.Public().(ed25519.PublicKey)
	return json.Marshal(struct {
		Keys []jwk `json:"keys"`
	}{[]jwk{{Kty: "OKP", Crv: "Ed25519", X: base64.RawURLEncoding.EncodeToString(public), Kid: keyID(public), Alg: "EdDSA",
		Use: "sig"}}})
}

// keyID is the key's thumbprint (RFC 7638).
func keyID(public ed25519.PublicKey) string {
	x := base64.RawURLEncoding.EncodeToString(public)
	sum := sha256.Sum256(fmt.Appendf(nil, `{"crv":"Ed25519","kty":"OKP","x":"%s"}`, x))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// callerKey is the key of caller tokens, in a file of its own. Safe for concurrent use.
type callerKey struct {
	file string

	mu  sync.Mutex
	key ed25519.PrivateKey
}

const (
	keyBlock = "PRIVATE KEY"
	maxKey   = 4 << 10
)

// read reads the key once, and makes it where there is no file.
func (k *callerKey) read() (ed25519.PrivateKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key != nil {
		return k.key, nil
	}
	if k.file == "" {
		return nil, glovebox.Errorf(glovebox.CodeInternal, "report this", "there is no place for the key of caller tokens")
	}
	key, err := readKey(k.file)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeKey(k.file); err != nil {
			return nil, glovebox.Internal("make the key of caller tokens", err)
		}
		key, err = readKey(k.file)
	}
	if err != nil {
		return nil, glovebox.Internal("read the key of caller tokens", err)
	}
	k.key = key
	return key, nil
}

func readKey(name string) (ed25519.PrivateKey, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	unfit := func(what string) error {
		return glovebox.Errorf(glovebox.CodeUnavailable, "see who put it there; remove it for a new key",
			"the file %s of the data folder %s", filepath.Base(name), what)
	}
	switch uid := info.Sys().(*syscall.Stat_t).Uid; {
	case !info.Mode().IsRegular():
		return nil, unfit("is no file")
	case info.Mode().Perm()&0o077 != 0:
		return nil, unfit("can be read by others")
	case int(uid) != os.Geteuid():
		return nil, unfit("is another user's")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKey))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != keyBlock {
		return nil, unfit("holds no key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, unfit("holds no Ed25519 key")
	}
	return key, nil
}

// makeKey writes a new key. Where another process was sooner its key stays.
func makeKey(name string) (err error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	bytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	// Mode 0600. A link gives it its name, so that nobody ever reads a half.
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.Write(pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: bytes}))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Link(f.Name(), name); errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return err
}
