package brokerd

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os/exec"
	"syscall"
	"time"

	"glovebox/internal/broker"
	"glovebox/internal/brokerd/action"
)

// newActions makes what does actions. Their requests go where the configuration says, by a transport of their own.
func (s *server) newActions(setup broker.Setup, roots tlsRoots) (err error) {
	if err := broker.CheckActions(setup.Actions, setup.Secrets); err != nil {
		return err
	}
	s.actor = &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return s.dialService(ctx, address, setup.Network.Private)
		},
		TLSClientConfig:        &tls.Config{RootCAs: roots.pool, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConns:           8,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
	s.actions, err = action.New(action.Config{Actions: setup.Actions, Send: s.sendAction, Start: startAction,
		Scrub: s.scrubAction, Log: s.log})
	return err
}

// sendAction sends the request of an action, with its secret: of a run that is lent it or not, since what is sent is the
// operator's word.
func (s *server) sendAction(ctx context.Context, run broker.Run, secret string, r *http.Request) (*http.Response, error) {
	if secret == "" {
		return s.actor.RoundTrip(r)
	}
	spec, b := s.specs[secret], s.ofRun(run.ID)
	if spec == nil || b == nil {
		return nil, unreadable(secret, "start the run again", "the run has ended", nil)
	}
	x := &exchange{b: b, r: r, loan: &loan{spec: *spec}}
	var err error
	if x.cred, err = x.credential(ctx); err != nil {
		return nil, err
	}
	if err := x.inject(r); err != nil {
		return nil, err
	}
	return s.actor.RoundTrip(r)
}

// ofRun is the binding of a run, or nil.
func (s *server) ofRun(id string) *binding {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.bindings {
		if b.run.ID == id {
			return b
		}
	}
	return nil
}

// scrubAction masks every value that the broker holds now.
func (s *server) scrubAction(run broker.Run, text []byte) []byte {
	values := s.store.values()
	if b := s.ofRun(run.ID); b != nil {
		values = append(values, b.tokens.Secrets()...)
	}
	masked, _ := newScrubber(values).maskString(string(text))
	return []byte(masked)
}

// maxPrinted bounds what is taken of what an action's program prints: a MiB, and a byte that tells of more.
const maxPrinted = 1<<20 + 1

// startAction runs an action's program, without a shell and without an environment.
func startAction(ctx context.Context, command []string, input []byte) (output []byte, exit int, err error) {
	out := bounded{most: maxPrinted}
	cmd := &exec.Cmd{Path: command[0], Args: command, Env: []string{commandPath}, Dir: "/", Stdin: bytes.NewReader(input),
		Stdout: &out, WaitDelay: time.Second, SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}}
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	stop := context.AfterFunc(ctx, func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with all that it started; it may just have ended
	})
	err = cmd.Wait()
	var ended *exec.ExitError
	switch inTime := stop(); {
	case !inTime:
		return nil, 0, context.Cause(ctx)
	case errors.As(err, &ended):
		return out.buf.Bytes(), ended.ExitCode(), nil
	}
	return out.buf.Bytes(), 0, err
}
