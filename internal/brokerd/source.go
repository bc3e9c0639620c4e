package brokerd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"glovebox"
	"glovebox/internal/broker"
)

// Bounds of a value. A shorter one could not be told from other text in answers.
const (
	minValue = 8
	maxValue = 64 << 10
)

// keptTime is how long a value that was read is used before its source is read again.
const keptTime = time.Minute

// credential is what is added to a request. Its fields have values: it is never printed.
type credential struct {
	value   broker.Secret // of AWS the secret access key
	keyID   string        // of AWS
	session broker.Secret // of AWS; empty where there is none
}

// secrets are the values that must not be seen.
func (c credential) secrets() []string {
	list := []string{c.value.Reveal()}
	if v := c.session.Reveal(); v != "" {
		list = append(list, v)
	}
	return list
}

// store reads sources when they are needed. Methods are safe for concurrent use.
type store struct {
	specs   []broker.Spec
	environ map[string]broker.Secret
	now     func() time.Time

	mu   sync.Mutex
	kept map[string]*kept
}

// kept is what was read of one source. Whoever has turn may look.
type kept struct {
	turn chan struct{}
	at   time.Time
	have bool
	cred credential
}

func newStore(setup broker.Setup) *store {
	return &store{specs: setup.Secrets, environ: setup.Environ, now: time.Now, kept: map[string]*kept{}}
}

// credential is what a secret's source holds; anew reads it even where it is known.
func (s *store) credential(ctx context.Context, spec broker.Spec, anew bool) (credential, error) {
	s.mu.Lock()
	k := s.kept[spec.Name]
	if k == nil {
		k = &kept{turn: make(chan struct{}, 1)}
		s.kept[spec.Name] = k
	}
	s.mu.Unlock()
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return credential{}, context.Cause(ctx)
	}
	if k.have && !anew && s.now().Sub(k.at) < keptTime {
		return k.cred, nil
	}
	k.have, k.cred = false, credential{}
	c, err := s.read(ctx, spec)
	if err != nil {
		return credential{}, err
	}
	k.have, k.at, k.cred = true, s.now(), c
	return c, nil
}

// values are all that was read and is kept.
func (s *store) values() []string {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.kept))
	s.mu.Unlock()
	var list []string
	for _, k := range all {
		k.turn <- struct{}{} // whoever reads a source does so in a bounded time
		if k.have {
			list = append(list, k.cred.secrets()...)
		}
		<-k.turn
	}
	return list
}

// unreadable tells that a secret cannot be had. The cause holds no value.
func unreadable(name, fix, why string, err error) error {
	e := glovebox.Errorf(glovebox.CodeUnavailable, fix, "secret %s cannot be read: %s", name, why)
	e.Op, e.Err = "read a secret", err
	return e
}

func (s *store) read(ctx context.Context, spec broker.Spec) (credential, error) {
	text, err := s.text(ctx, spec)
	if err != nil {
		return credential{}, err
	}
	text = strings.TrimRight(text, "\r\n")
	if spec.Place() == broker.PlaceSigV4 && spec.AccessKeyID == "" {
		return processCredential(spec.Name, text)
	}
	return credential{value: broker.NewSecret(text), keyID: spec.AccessKeyID}, checkValue(spec.Name, text)
}

func checkValue(name, text string) error {
	switch {
	case text == "":
		return unreadable(name, "put the value where the configuration says that it is", "its source is empty", nil)
	case len(text) < minValue:
		return unreadable(name, "use a longer one",
			"it has fewer than 8 characters, so that it could not be found in answers", nil)
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }):
		return unreadable(name, "leave everything but the value out of its source",
			"it has a line break or another character that no request can carry", nil)
	}
	return nil
}

// text is what a source holds.
func (s *store) text(ctx context.Context, spec broker.Spec) (string, error) {
	switch {
	case spec.File != "":
		return readFile(spec)
	case spec.Env != "":
		v, ok := s.environ[spec.Env]
		if !ok {
			return "", unreadable(spec.Name, "set "+spec.Env+" before glovebox is started", "the variable is not set", nil)
		}
		return v.Reveal(), nil
	}
	return runCommand(ctx, spec, s.environ)
}

// readFile reads a file that nobody else can read or change: what is judged is the open file.
func readFile(spec broker.Spec) (string, error) {
	f, err := os.OpenFile(spec.File, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", unreadable(spec.Name, "make the file, with mode 0600", "there is no such file", err)
	case errors.Is(err, syscall.ELOOP):
		return "", unreadable(spec.Name, "name the file itself", "the file is a link", err)
	case err != nil:
		return "", unreadable(spec.Name, "let the user who runs glovebox read it", "the file cannot be opened", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", unreadable(spec.Name, "look at the file", "the file cannot be looked at", err)
	}
	if err := broker.CheckFile(spec.Name, info, os.Geteuid()); err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxValue+1))
	defer clear(b)
	switch {
	case err != nil:
		return "", unreadable(spec.Name, "look at the file", "the file cannot be read", err)
	case len(b) > maxValue:
		return "", unreadable(spec.Name, "name a file with the value alone", "the file has more than 64 KiB", nil)
	}
	return string(b), nil
}

// processCredential reads what a credential_process of AWS prints.
func processCredential(name, text string) (credential, error) {
	var p struct {
		Version         int
		AccessKeyID     string `json:"AccessKeyId"`
		SecretAccessKey string
		SessionToken    string
		Expiration      time.Time
	}
	// The error of json quotes what it reads.
	if json.Unmarshal([]byte(text), &p) != nil || p.Version != 1 || p.AccessKeyID == "" {
		return credential{}, unreadable(name, "add access_key_id: AKIA…, or make the source print that JSON",
			"without access_key_id the source must hold the JSON of a credential_process", nil)
	}
	if !p.Expiration.IsZero() && !time.Now().Before(p.Expiration) {
		return credential{}, unreadable(name, "renew them", "the credentials have expired", nil)
	}
	return credential{value: broker.NewSecret(p.SecretAccessKey), keyID: p.AccessKeyID,
			session: broker.NewSecret(p.SessionToken)},
		checkValue(name, p.SecretAccessKey)
}
