package mint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
	"unicode"

	"glovebox"
)

// Bounds of an answer of a token service.
const (
	maxAnswer       = 1 << 20
	maxAnswerHeader = 64 << 10
	answerTime      = 10 * time.Second
	idleTime        = 30 * time.Second
)

// client makes the HTTP client of one secret's token service: by the broker's dialer, over verified TLS, without following
// anything, without a proxy of its own.
func (m *Mint) client(private []netip.Prefix) *http.Client {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return m.cfg.Dial(ctx, address, private)
		},
		TLSClientConfig:        &tls.Config{RootCAs: m.cfg.Roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    answerTime,
		ResponseHeaderTimeout:  answerTime,
		IdleConnTimeout:        idleTime,
		MaxIdleConns:           4,
		MaxResponseHeaderBytes: maxAnswerHeader,
	}
	return &http.Client{
		Transport:     bounded{t},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// bounded sends to https alone and ends answers that are too long.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, errors.New("a token service is asked over https alone")
	}
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	}
	return resp, err
}

// service is what all kinds have.
type service struct {
	name   string // the secret's
	now    func() time.Time
	source func(ctx context.Context, name string) ([]byte, error)
	client *http.Client
}

// secret reads a source's value, without the end of line that files have.
func (s service) secret(ctx context.Context, name string) (string, error) {
	b, err := s.source(ctx, name)
	if err != nil {
		return "", err
	}
	if v := strings.TrimRight(string(b), "\r\n"); v != "" {
		return v, nil
	}
	return "", glovebox.Errorf(glovebox.CodeUnavailable, "put the value where the configuration says that it is",
		"the source of secret %s is empty", name)
}

// refused tells what a token service answered: the protocol's own word and the status, no text that could hold a secret.
func (s service) refused(address string, status int, word, fix string) error {
	if word = plain(word); word != "" {
		word = ": " + word
	}
	return glovebox.Errorf(glovebox.CodeUnavailable, fix, "%s made no token for secret %s (status %d%s)",
		host(address), s.name, status, word)
}

// unreached tells that a token service could not be asked. The cause stays on the host.
func (s service) unreached(address string, err error) error {
	e := glovebox.Errorf(glovebox.CodeUnavailable, "see whether the host can be reached and its certificate is good",
		"%s could not be asked for a token of secret %s", host(address), s.name)
	var known *glovebox.Error
	if errors.As(err, &known) {
		e.Public += ": " + known.Public
	}
	e.Err = err
	return e
}

// unusable tells that an answer was not what the protocol has.
func (s service) unusable(address, what string) error {
	return glovebox.Errorf(glovebox.CodeUnavailable, "see whether the address is that of a token service",
		"the answer of %s for secret %s %s", host(address), s.name, what)
}

// skew tells how far the service's clock is from this one, where that is more than a little.
func (s service) skew(resp *http.Response) string {
	at, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return ""
	}
	if d := s.now().Sub(at).Round(time.Second); d.Abs() > 30*time.Second {
		return fmt.Sprintf("set this machine's clock: it is %v off the service's", d)
	}
	return ""
}

// remaining is how long something is good that the service's clock says ends at expires. The two clocks need not agree.
func (s service) remaining(expires time.Time, resp *http.Response) time.Duration {
	now := s.now()
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		now = at
	}
	return expires.Sub(now)
}

func host(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Host
	}
	return "the token service"
}

// plain is a word of a protocol, or nothing where it is none.
func plain(word string) string {
	if len(word) > 64 || strings.ContainsFunc(word, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-. ", r)
	}) {
		return ""
	}
	return word
}
