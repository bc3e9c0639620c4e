// Package httpapi is the HTTP door: it says who asks, reads what is asked strictly, and shows what a glovebox.Service does.
//
// It serves unix sockets. Whoever connects with the server's own user id is the owner; everybody else is refused. Nothing
// of a request's body says who asks. What the door knows and does not offer yet is refused by name.
package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"glovebox"
)

// Headers of the protocol beyond HTTP's own. A client has the same names.
const (
	// headerConfig tells the digest of the server's configuration with each answer. In a request it demands that one.
	headerConfig = "Glovebox-Config"
	// headerHandle is how a client names a run before it has an id: 16 to 64 letters and digits.
	headerHandle = "Glovebox-Handle"
	// headerNotRun marks a refusal by the door itself, of which the service knows nothing: it may be asked for elsewhere.
	headerNotRun = "Glovebox-Not-Run"
)

// Bounds of what is asked and for how long.
const (
	maxBody        = 16 * glovebox.MiB
	maxHeaders     = 32 << 10
	maxConnections = 1024 // more wait until one ends
	headerTime     = 5 * time.Second
	bodyTime       = time.Minute
	answerTime     = 30 * time.Second // for each piece of an answer
	idleTime       = 2 * time.Minute
	beatTime       = 10 * time.Second
	graceTime      = 5 * time.Second
	cancelTime     = time.Minute // until runs that were cancelled have ended
)

// Config is what a Door is made of. It is read by New only.
type Config struct {
	// Service does what is asked. The door does not close it. Required.
	Service glovebox.Service
	// UID is whose connections are the owner's: the server's own user id.
	UID int
	// Owner is who the owner is. Required.
	Owner glovebox.Principal
	// Digest tells the configuration of the Service. A request that demands another is refused.
	Digest string
	// Version is what /healthz says.
	Version string
	// Metrics tells what /metrics shows beside the door's own; nil refuses /metrics.
	Metrics func() []Metric
	// Log gets what goes wrong beside the answers, with causes; nil discards.
	Log *slog.Logger
	// Grace is how long a run lasts whose client left; zero means 5 s.
	Grace time.Duration
}

// Door is an HTTP server of one Service. Methods are safe for concurrent use.
type Door struct {
	cfg    Config
	server http.Server
	live   registry
	health health
	digest atomic.Pointer[string]
}

// New makes a Door.
func New(cfg Config) (*Door, error) {
	if cfg.Service == nil || cfg.Owner.Tenant == "" || cfg.Owner.Name == "" {
		return nil, errors.New("new door: Service or Owner is missing")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Grace == 0 {
		cfg.Grace = graceTime
	}
	d := &Door{cfg: cfg, health: health{turn: make(chan struct{}, 1)}}
	d.SetDigest(cfg.Digest)
	d.server = http.Server{
		Handler:           d,
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeaders,
		ConnContext:       identify,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
	return d, nil
}

// SetDigest says that the Service has another configuration from now on.
func (d *Door) SetDigest(digest string) { d.digest.Store(&digest) }

// Serve answers on l until Stop, and closes it. It may be called for several listeners. After Stop it returns nil.
func (d *Door) Serve(l *net.UnixListener) error {
	err := d.server.Serve(newListener(l, maxConnections))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Live is how many runs are in progress.
func (d *Door) Live() int { return d.live.count() }

// Stop begins no more runs and waits for those in progress, which can be looked at and cancelled meanwhile. When ctx ends
// before they do it cancels them, so that they end with a result, and says how many they were. Then it stops to listen, and
// returns when nothing of the door goes on.
func (d *Door) Stop(ctx context.Context) (canceled int, err error) {
	select {
	case <-d.live.drain():
	case <-ctx.Done():
		canceled = d.live.cancelAll(errStopped)
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer stop()
	if err = d.server.Shutdown(ctx); err != nil {
		return canceled, errors.Join(err, d.server.Close())
	}
	return canceled, nil
}

var errStopped = errors.New("the server stops")

// peer is who connected.
type peer struct {
	uid   int
	known bool
}

type peerKey struct{}

// identify asks the kernel who connected.
func identify(ctx context.Context, c net.Conn) context.Context {
	who := peer{}
	if c, ok := c.(*conn); ok {
		who.uid, who.known = c.peer()
	}
	return context.WithValue(ctx, peerKey{}, who)
}

// principal is who asks, by the connection alone.
func (d *Door) principal(r *http.Request) (glovebox.Principal, error) {
	who, _ := r.Context().Value(peerKey{}).(peer)
	if !who.known || who.uid != d.cfg.UID {
		return glovebox.Principal{}, glovebox.Errorf(glovebox.CodeDenied, "connect as the user who started the server",
			"this server answers its own user alone")
	}
	owner := d.cfg.Owner
	owner.Door = "http"
	return owner, nil
}

// ServeHTTP implements http.Handler.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{Door: d, w: w, r: r, rc: http.NewResponseController(w)}
	_ = c.rc.SetWriteDeadline(time.Time{}) // of the connection's last request
	h := w.Header()
	if digest := *d.digest.Load(); digest != "" {
		h.Set(headerConfig, digest)
	}
	h["Date"] = nil // nobody asks for it
	var err error
	if c.who, err = d.principal(r); err == nil {
		err = c.route()
	}
	if err != nil {
		c.fail(err)
	}
}

// call is one request on its way through the door.
type call struct {
	*Door
	w   http.ResponseWriter
	r   *http.Request
	rc  *http.ResponseController
	who glovebox.Principal
}

// route finds what is asked for. The path is divided before it is unescaped, so that a name with a slash stays one.
func (c *call) route() error {
	if want := c.r.Header.Get(headerConfig); want != "" && want != *c.digest.Load() {
		c.w.Header().Set(headerNotRun, "configuration")
		return glovebox.Errorf(glovebox.CodeConflict, "start the server again, or leave the header "+headerConfig+" out",
			"this server has another configuration than the one that was demanded")
	}
	path := strings.Split(strings.TrimPrefix(c.r.URL.EscapedPath(), "/"), "/")
	for i := range path {
		var err error
		if path[i], err = url.PathUnescape(path[i]); err != nil {
			return glovebox.Errorf(glovebox.CodeInvalid, "write % as %25", "the path is not escaped as it must be")
		}
	}
	if path[0] == "healthz" && len(path) == 1 {
		return c.only("GET", c.showHealth)
	}
	if path[0] == "metrics" && len(path) == 1 {
		return c.only("GET", c.showMetrics)
	}
	if path[0] != "v1" {
		return c.elsewhere(path)
	}
	switch at := path[1:]; {
	case len(at) == 1 && at[0] == "runs" && c.r.Method == "GET":
		return unbuilt("GET /v1/runs", "GET /v1/traces lists runs")
	case len(at) == 1 && at[0] == "runs":
		return c.only("POST", c.run)
	case len(at) == 2 && at[0] == "runs" && c.r.Method == "DELETE":
		return c.cancel(at[1])
	case len(at) == 2 && at[0] == "runs":
		return c.only("GET", func() error { return c.showRun(at[1]) })
	case len(at) == 3 && at[0] == "runs" && at[2] == "output":
		return c.only("GET", func() error { return c.showOutput(at[1]) })
	case len(at) > 3 && at[0] == "runs" && at[2] == "artifacts":
		return c.only("GET", func() error { return c.showArtifact(at[1], strings.Join(at[3:], "/")) })
	case len(at) == 1 && at[0] == "traces":
		return c.only("GET", c.listTraces)
	case len(at) == 2 && at[0] == "traces" && at[1] == "verify":
		return c.only("POST", c.verify)
	case len(at) == 2 && at[0] == "traces":
		return c.only("GET", func() error { return c.showTrace(at[1]) })
	case len(at) == 1 && at[0] == "posture":
		return c.only("GET", c.showPosture)
	case len(at) == 1 && at[0] == "doctor":
		return c.only("GET", c.showDoctor)
	}
	return c.elsewhere(path)
}

// only answers one method.
func (c *call) only(method string, answer func() error) error {
	if c.r.Method == method {
		return answer()
	}
	c.w.Header().Set("Allow", method)
	return glovebox.Errorf(glovebox.CodeInvalid, "use "+method, "%.20q is no method of this path", c.r.Method)
}

// elsewhere refuses a path: by name when it is known and not built.
func (c *call) elsewhere(path []string) error {
	known := strings.Join(path[:min(2, len(path))], "/")
	if len(path) == 4 && known == "v1/runs" && path[3] == "events" {
		known = "v1/runs/{id}/events"
	}
	switch known {
	case "v1/sessions", "v1/budgets", "v1/runs/{id}/events", "mcp", "openapi.json", "metrics", "", "try":
		return unbuilt("/"+known, "docs/serve.md lists what there is")
	}
	return glovebox.Errorf(glovebox.CodeNotFound, "docs/serve.md lists the paths", "there is nothing at this path")
}

// unbuilt refuses by name what the door knows and does not offer yet.
func unbuilt(name, fix string) error {
	return glovebox.Errorf(glovebox.CodeUnavailable, fix, "%s is not available in this version", name)
}
