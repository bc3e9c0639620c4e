// Package client asks a Glovebox server on a unix socket of this machine. It implements glovebox.Service over the HTTP door,
// so that whoever is written against a Service can use either.
//
// A server knows who asks by the connection alone, so only the owner's requests are sent. What a connection cannot carry
// exactly is refused with ErrNotSent, and nothing was run then.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"glovebox"
)

// Headers of the protocol beyond HTTP's own. The door has the same names.
const (
	headerConfig = "Glovebox-Config"
	headerHandle = "Glovebox-Handle"
	headerNotRun = "Glovebox-Not-Run"
)

// ErrNotSent is in the chain of an error where the server knows nothing of the request: no server answers, it is another's,
// it has another configuration, or the request cannot be sent as it is. Whoever may can do it elsewhere.
var ErrNotSent = errors.New("not sent")

const (
	maxIdle   = 256              // connections that are kept
	idleTime  = 30 * time.Second // less than the door's
	maxError  = 64 << 10         // bytes of an error
	maxAnswer = 256 << 20        // bytes of any other answer or event
)

// Config says where the server is.
type Config struct {
	// Socket is the path of the server's socket. Required.
	Socket string
	// UID is the user that the server must run as: the caller's own.
	UID int
	// Digest, if not empty, is the configuration that the server must have.
	Digest string
}

// Client implements glovebox.Service. It is safe for concurrent use. Connections are kept for a while.
type Client struct {
	cfg       Config
	transport *http.Transport
}

var _ glovebox.Service = (*Client)(nil)

// New makes a Client. It connects at the first use.
func New(cfg Config) *Client {
	c := &Client{cfg: cfg}
	c.transport = &http.Transport{
		DialContext:         func(context.Context, string, string) (net.Conn, error) { return c.dial() },
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     idleTime,
		DisableCompression:  true,
	}
	return c
}

// Close implements glovebox.Service: it lets the connections go. The server goes on.
func (c *Client) Close() error {
	c.transport.CloseIdleConnections()
	return nil
}

// dial connects, and checks whose server it is.
func (c *Client) dial() (net.Conn, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.cfg.Socket, Net: "unix"})
	if errors.Is(err, syscall.EACCES) {
		return nil, notSent(glovebox.CodeDenied, err, "name a server of your own, or start one: glovebox serve",
			"the server at unix:%s is another user's: this user (uid %d) may not reach its socket", c.cfg.Socket, c.cfg.UID)
	}
	if err != nil {
		return nil, notSent(glovebox.CodeUnavailable, err, "start one: glovebox serve --listen unix:"+c.cfg.Socket,
			"no server answers at unix:%s: %s", c.cfg.Socket, errno(err))
	}
	uid, err := peer(conn)
	if err == nil && uid != c.cfg.UID {
		err = notSent(glovebox.CodeDenied, nil, "name a server of your own", "the server at unix:%s is user %d's",
			c.cfg.Socket, uid)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// peer is whose process listens, as the kernel knows.
func peer(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, failed
	}
	return int(cred.Uid), nil
}

// errno is the system's word for err.
func errno(err error) string {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e.Error()
	}
	return "it cannot be connected to"
}

// notSent makes an error of which ErrNotSent is a cause.
func notSent(code glovebox.Code, cause error, fix, format string, args ...any) error {
	e := glovebox.Errorf(code, fix, format, args...)
	e.Err = errors.Join(ErrNotSent, cause)
	return e
}

// owner refuses to ask for anybody else: the server would take the request for the owner's.
func owner(who glovebox.Principal) error {
	if who.Owner && who.Tenant == "local" {
		return nil
	}
	return glovebox.Errorf(glovebox.CodeDenied, "use an engine of its own for other principals",
		"only the owner can ask a server on a unix socket")
}

// do asks once. The caller closes the answer's body, which says that all went well.
func (c *Client) do(ctx context.Context, method, path string, body []byte, header map[string]string) (
	*http.Response, error) {
	// The name of the host says nothing on a unix socket.
	r, err := http.NewRequestWithContext(ctx, method, "http://glovebox"+path, bytes.NewReader(body))
	if err != nil {
		return nil, glovebox.Internal("make a request", err)
	}
	if len(body) > 0 {
		r.Header["Content-Type"] = []string{"application/json"}
	}
	if c.cfg.Digest != "" {
		r.Header[headerConfig] = []string{c.cfg.Digest}
	}
	for name, value := range header {
		r.Header[name] = []string{value}
	}
	answer, err := c.transport.RoundTrip(r)
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close()
	return nil, refusal(answer)
}

// broken is the error for a connection that could not be had or did not last.
func (c *Client) broken(ctx context.Context, err error) error {
	var known *glovebox.Error
	if errors.As(err, &known) {
		return known
	}
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return &glovebox.Error{Code: glovebox.CodeInternal, Op: "ask the server", Err: err,
		Public: "the server did not answer to its end",
		Fix:    "`glovebox trace ls` tells what ran; the server's log names the cause"}
}

// refusal is the error that the server answered with.
func refusal(answer *http.Response) error {
	var shown struct{ Error glovebox.ErrorShown }
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxError))
	if err == nil {
		err = json.Unmarshal(text, &shown)
	}
	if err != nil || shown.Error.Code.HTTPStatus() == 0 {
		return &glovebox.Error{Code: glovebox.CodeInternal, Op: "ask the server", Err: err,
			Public: fmt.Sprintf("the server answered %d and no error of Glovebox", answer.StatusCode),
			Fix:    "see that what listens there is glovebox serve"}
	}
	e := told(shown.Error)
	if answer.Header.Get(headerNotRun) != "" {
		e.Err = ErrNotSent
	}
	return e
}

func told(e glovebox.ErrorShown) *glovebox.Error {
	return &glovebox.Error{Code: e.Code, Public: e.Message, Fix: e.Fix}
}

// get asks for JSON and reads it into to.
func (c *Client) get(ctx context.Context, method, path string, body []byte, to any) error {
	answer, err := c.do(ctx, method, path, body, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return c.broken(ctx, err)
	}
	if err := json.Unmarshal(text, to); err != nil {
		return glovebox.Internal("read the server's answer", err)
	}
	return nil
}

// Output implements glovebox.Runs.
func (c *Client) Output(ctx context.Context, who glovebox.Principal, run, stream string, offset, limit int64) (
	[]byte, error) {
	if err := owner(who); err != nil {
		return nil, err
	}
	q := url.Values{"stream": {stream}, "offset": {strconv.FormatInt(offset, 10)}, "limit": {strconv.FormatInt(limit, 10)}}
	answer, err := c.do(ctx, "GET", "/v1/runs/"+url.PathEscape(run)+"/output?"+q.Encode(), nil, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	piece, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	return piece, nil
}

// Artifact implements glovebox.Runs. Reading fails if the file does not arrive whole.
func (c *Client) Artifact(ctx context.Context, who glovebox.Principal, run, path string) (io.ReadCloser, error) {
	if err := owner(who); err != nil {
		return nil, err
	}
	elements := strings.Split(path, "/")
	for i := range elements {
		elements[i] = url.PathEscape(elements[i])
	}
	answer, err := c.do(ctx, "GET", "/v1/runs/"+url.PathEscape(run)+"/artifacts/"+strings.Join(elements, "/"), nil, nil)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// Trace implements glovebox.Traces.
func (c *Client) Trace(ctx context.Context, who glovebox.Principal, run string) (*glovebox.Record, error) {
	if err := owner(who); err != nil {
		return nil, err
	}
	rec := new(glovebox.Record)
	if err := c.get(ctx, "GET", "/v1/traces/"+url.PathEscape(run), nil, rec); err != nil {
		return nil, err
	}
	return rec, nil
}

// Traces implements glovebox.Traces.
func (c *Client) Traces(ctx context.Context, who glovebox.Principal, q glovebox.TraceQuery) ([]glovebox.Record, error) {
	if err := owner(who); err != nil {
		return nil, err
	}
	v := url.Values{}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	for name, text := range map[string]string{"before": q.Before, "status": string(q.Status)} {
		if text != "" {
			v.Set(name, text)
		}
	}
	for name, at := range map[string]time.Time{"since": q.Since, "until": q.Until} {
		if !at.IsZero() {
			v.Set(name, at.Format(time.RFC3339Nano))
		}
	}
	var list struct{ Traces []glovebox.Record }
	if err := c.get(ctx, "GET", "/v1/traces?"+v.Encode(), nil, &list); err != nil {
		return nil, err
	}
	return list.Traces, nil
}

// Verify implements glovebox.Traces.
func (c *Client) Verify(ctx context.Context, who glovebox.Principal, heads []glovebox.TraceRef) (
	*glovebox.Verification, error) {
	if err := owner(who); err != nil {
		return nil, err
	}
	body, err := json.Marshal(map[string]any{"heads": heads})
	if err != nil {
		return nil, glovebox.Internal("write the heads", err)
	}
	found := new(glovebox.Verification)
	if err := c.get(ctx, "POST", "/v1/traces/verify", body, found); err != nil {
		return nil, err
	}
	return found, nil
}

// Rungs implements glovebox.Admin.
func (c *Client) Rungs(ctx context.Context) ([]glovebox.Rung, error) {
	var list struct{ Rungs []glovebox.Rung }
	if err := c.get(ctx, "GET", "/v1/posture", nil, &list); err != nil {
		return nil, err
	}
	return list.Rungs, nil
}

// Doctor implements glovebox.Admin.
func (c *Client) Doctor(ctx context.Context) (*glovebox.Report, error) {
	report := new(glovebox.Report)
	if err := c.get(ctx, "GET", "/v1/doctor", nil, report); err != nil {
		return nil, err
	}
	return report, nil
}
