package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"sync"

	"glovebox"
)

// Config is what a Client is made of. It is read by New only.
type Config struct {
	// Program is the path of glovebox-broker.
	Program string
	// Secrets are those that may be lent. They were checked by CheckAll.
	Secrets []Spec
	// Actions are those that may be done. They were checked by CheckActions.
	Actions []Action
	// Environ has the variables that Secrets name, as far as they are set.
	Environ map[string]Secret
	// Network, Roots (PEM) and Dir (where keys may be kept) are the broker's to use.
	Network Network
	Roots   []byte
	Dir     string
	// Log gets what goes wrong beside the answers; nil discards.
	Log *slog.Logger
}

// Client starts a broker when the first run is lent something, and speaks to it. Methods are safe for concurrent use. The
// caller closes it.
type Client struct {
	cfg   Config
	specs map[string]*Spec

	mu      sync.Mutex
	closed  bool
	current *process // nil: none was started, or it ended
}

// New makes a Client; nothing is started.
func New(cfg Config) (*Client, error) {
	if err := CheckAll(cfg.Secrets); err != nil {
		return nil, err
	}
	if err := CheckActions(cfg.Actions, cfg.Secrets); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Client{cfg: cfg, specs: map[string]*Spec{}}
	for i := range cfg.Secrets {
		c.specs[cfg.Secrets[i].Name] = &cfg.Secrets[i]
	}
	return c, nil
}

// Available is nil where a broker can be started, as far as a look tells. Else it is a *glovebox.Error that says what is
// missing.
func (c *Client) Available() error {
	info, err := os.Stat(c.cfg.Program)
	if err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
		err = fs.ErrPermission
	}
	if err != nil {
		return absent(err)
	}
	return nil
}

// absent tells that there is no broker to start.
func absent(err error) error {
	e := glovebox.Errorf(glovebox.CodeUnavailable,
		"keep glovebox-broker in the folder of glovebox, both executable (make build puts them into bin)",
		"the broker, which lends secrets, cannot be started: glovebox-broker is missing or not executable")
	e.Op, e.Err = "start the broker", err
	return e
}

// process returns the broker that runs, and starts one where none does. One that ended takes its bindings with it.
func (c *Client) process(ctx context.Context) (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, glovebox.Internal("ask the broker", errors.New("the client is closed"))
	}
	if c.current != nil && !c.current.over() {
		return c.current, nil
	}
	if c.current != nil {
		c.current.close()
		c.current = nil
	}
	p, err := start(ctx, c.cfg)
	if err != nil {
		return nil, err
	}
	c.current = p
	return p, nil
}

// Check asks for each secret whether its source can be read. The values stay in the broker.
func (c *Client) Check(ctx context.Context) ([]Checked, error) {
	_, a, err := c.begin(ctx, PathCheck, struct{}{})
	return a.Checked, err
}

// begin asks a broker for something that does not depend on what was asked before. One that ended a moment ago, which nobody
// could know, is replaced once.
func (c *Client) begin(ctx context.Context, path string, body any) (p *process, a Answer, err error) {
	for range 2 {
		if p, err = c.process(ctx); err != nil {
			return nil, a, err
		}
		if a, err = p.ask(ctx, path, body); err == nil || !p.over() {
			break
		}
	}
	return p, a, err
}

// Close ends the broker, and all bindings with it.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.current != nil {
		c.current.close()
		c.current = nil
	}
	return nil
}

// ask sends an admin request.
func (p *process) ask(ctx context.Context, path string, body any) (a Answer, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return a, glovebox.Internal("ask the broker", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://broker"+path, bytes.NewReader(b))
	if err != nil {
		return a, glovebox.Internal("ask the broker", err)
	}
	resp, err := p.admin.RoundTrip(r)
	if err != nil {
		return a, p.gone(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return a, glovebox.Internal("ask the broker", fmt.Errorf("it answered %d", resp.StatusCode))
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, MaxAnswer)).Decode(&a); err != nil {
		return a, p.gone(ctx, err)
	}
	return a, a.Error.Err()
}

// gone tells that the broker did not answer. Unless ctx is why, it will answer nobody any more.
func (p *process) gone(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		p.lost.Store(true)
	}
	e := glovebox.Errorf(glovebox.CodeUnavailable, "start the run again; the log says why the broker ended",
		"the broker, which lends secrets, did not answer")
	e.Op, e.Err = "ask the broker", err
	return e
}
