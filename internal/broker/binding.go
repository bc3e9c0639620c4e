package broker

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync/atomic"

	"glovebox"
	"glovebox/internal/egress"
)

// Binding is what one run was lent. Methods are safe for concurrent use. Its requests fail, and nothing else happens, once
// it is closed or the broker has ended.
type Binding struct {
	id       string
	process  *process
	lent     []Lent
	specs    []*Spec // of lent, in its order
	bound    map[Endpoint]bool
	detector *Detector
	streams  *http.Transport
	actions  []string

	ends atomic.Bool
}

// Bind lends secrets to a run whose egress rules are given. It starts the broker where none runs. What is not configured, or
// not for that host, is denied; so is a host whose traffic is not inspected. The actions are those that its program may
// call. The caller closes the Binding when nothing of
// the run is alive.
func (c *Client) Bind(ctx context.Context, run Run, rules []glovebox.EgressRule, refs []glovebox.SecretRef,
	actions ...string) (*Binding, error) {
	b := &Binding{id: rand.Text(), actions: actions, bound: map[Endpoint]bool{}}
	compiled, err := egress.Compile(rules)
	if err != nil {
		return nil, glovebox.Internal("lend secrets", err)
	}
	for _, ref := range refs {
		if err := c.lend(b, compiled, ref); err != nil {
			return nil, err
		}
	}
	placeholders := make([]string, 0, len(b.lent))
	for i, l := range b.lent {
		placeholders = append(placeholders, l.Placeholder)
		b.specs = append(b.specs, c.specs[b.lent[i].Name])
	}
	b.detector = NewDetector(placeholders)
	b.process, _, err = c.begin(ctx, PathBind, BindAsk{Binding: b.id, Run: run, Rules: rules, Lent: b.lent,
		Actions: actions})
	if err != nil {
		return nil, err
	}
	b.streams = b.process.transport(Opening{Kind: StreamRun, Binding: b.id})
	return b, nil
}

// lend adds one host of one secret to b.
func (c *Client) lend(b *Binding, rules *egress.Rules, ref glovebox.SecretRef) error {
	spec := c.specs[ref.Name]
	if spec == nil {
		return glovebox.Errorf(glovebox.CodeDenied, "name a configured secret: `glovebox secret ls`",
			"there is no secret %.80q", ref.Name)
	}
	endpoints, err := spec.Endpoints()
	if err != nil {
		return glovebox.Internal("lend secrets", err)
	}
	if ref.Host != "" {
		asked, err := ParseEndpoint(ref.Host)
		if err != nil {
			return glovebox.Errorf(glovebox.CodeInvalid, "write NAME@HOST or NAME@HOST:PORT", "secret %s: %s", ref.Name, err)
		}
		if !slices.Contains(endpoints, asked) {
			return glovebox.Errorf(glovebox.CodeDenied, "add it to secrets."+ref.Name+".hosts in glovebox.yaml",
				"secret %s is not for %s", ref.Name, asked)
		}
		endpoints = []Endpoint{asked}
	}
	i := slices.IndexFunc(b.lent, func(l Lent) bool { return l.Name == ref.Name })
	if i < 0 {
		p, err := NewPlaceholder(spec.Shape)
		if err != nil {
			return glovebox.Internal("lend secrets", err)
		}
		b.lent, i = append(b.lent, Lent{Name: ref.Name, Placeholder: p}), len(b.lent)
	}
	for _, e := range endpoints {
		v := rules.Stream(e.Host, e.Port, egress.HTTPS)
		if !v.Allowed {
			return glovebox.Errorf(glovebox.CodeDenied, "allow the host too: --allow https://"+e.String(),
				"secret %s is for %s, which this run may not reach", ref.Name, e)
		}
		if v.Mode != egress.Inspect {
			return glovebox.Errorf(glovebox.CodeDenied, "take mode: sni out of the rule",
				"secret %s cannot be lent for %s: rule %s does not open its traffic", ref.Name, e, v.Rule)
		}
		if !slices.Contains(b.lent[i].Hosts, e.String()) {
			b.lent[i].Hosts = append(b.lent[i].Hosts, e.String())
		}
		b.bound[e] = true
	}
	return nil
}

// Bound tells whether requests to a host over https are the broker's to send.
func (b *Binding) Bound(host egress.Host, port uint16) bool { return b.bound[Endpoint{host, port}] }

// Finder finds placeholders in one stream that is not the broker's. It is used by one goroutine at a time; Find tells
// whether one was found, in p or before. See Ends.
func (b *Binding) Finder() interface{ Find(p []byte) bool } { return &finder{b, b.detector.Scan()} }

type finder struct {
	binding *Binding
	scan    *Scan
}

func (f *finder) Find(p []byte) bool {
	found := f.scan.Find(p)
	if found {
		f.binding.violate(f.binding.lent[f.scan.Found()].Name)
	}
	return found
}

// someEnd tells whether a violation of any secret ends the run.
func (b *Binding) someEnd() bool {
	return slices.ContainsFunc(b.specs, func(s *Spec) bool { return s.OnViolation == ViolationEnd })
}

// watched is a body that is looked through as it is sent. What is found is refused by the broker.
type watched struct {
	io.ReadCloser
	finder interface{ Find(p []byte) bool }
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.finder.Find(p[:n])
	return n, err
}

// violate notes that a placeholder was sent to where it is not for.
func (b *Binding) violate(name string) {
	for _, s := range b.specs {
		if s.Name == name && s.OnViolation == ViolationEnd {
			b.ends.Store(true)
		}
	}
}

// Ends tells whether a placeholder was sent to where it is not for whose secret says that this ends the run.
func (b *Binding) Ends() bool { return b.ends.Load() }

// Handler serves the broker's own host inside; nil where there is none.
func (b *Binding) Handler() http.Handler {
	if len(b.actions) == 0 {
		return nil
	}
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", Host, Host
		},
		Transport: b.streams, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // it could quote a request
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			http.Error(w, `{"error":"the broker has ended","ask":"start the run again"}`, http.StatusBadGateway)
		},
	}
}

// Env are the variables of the run: a placeholder for each secret, under its name. None is a secret.
func (b *Binding) Env() []string {
	var env []string
	for i, l := range b.lent {
		env = append(env, l.Name+"="+l.Placeholder)
		if s := b.specs[i]; s.Place() == PlaceSigV4 {
			// What a client signs with these is taken off; without them it would not ask at all.
			env = append(env, "AWS_ACCESS_KEY_ID="+sigV4Key, "AWS_SECRET_ACCESS_KEY="+l.Placeholder, "AWS_REGION="+s.Region)
		}
	}
	return env
}

// SigV4Inside is how the signature begins of a program that signs with what it was told: the id of a key that is nobody's.
const SigV4Inside = "AWS4-HMAC-SHA256 Credential=" + sigV4Key + "/"

const sigV4Key = "AKIAGLOVEBOXNOBODYS0"

// RoundTrip sends a request to a bound host by the broker, which judges it anew. What the broker refuses, or cannot do, is
// an answer with HeaderReason, by which nothing of a secret was sent; an error means that there is no broker.
func (b *Binding) RoundTrip(r *http.Request) (*http.Response, error) {
	port := r.URL.Port()
	if port == "" {
		port = "443"
	}
	out := r.Clone(r.Context())
	out.Trailer = r.Trailer // the same map: its values come after the body
	if r.Body != nil && b.someEnd() {
		// The broker looks too. But an answer that has begun cannot say any more what became of its request.
		out.Body = &watched{r.Body, b.Finder()}
	}
	out.URL.Scheme, out.URL.Host = "http", r.URL.Hostname()+":"+port
	out.Host = out.URL.Host
	resp, err := b.streams.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	if resp.Header.Get(HeaderReason) != "" {
		b.violate(resp.Header.Get(HeaderSecret))
		resp.Header.Del(HeaderSecret)
	}
	resp.Request = r
	return resp, nil
}

// Replace changes the run's egress rules. What they no longer allow is not sent any more once it has returned.
func (b *Binding) Replace(ctx context.Context, rules []glovebox.EgressRule) error {
	_, err := b.process.ask(ctx, PathReplace, ReplaceAsk{Binding: b.id, Rules: rules})
	return err
}

// Close takes back what was lent. It waits until the broker has forgotten it; where the broker has ended there is nothing to
// take back.
func (b *Binding) Close(ctx context.Context) error {
	b.streams.CloseIdleConnections()
	if b.process.over() {
		return nil
	}
	_, err := b.process.ask(ctx, PathUnbind, UnbindAsk{Binding: b.id})
	if b.process.over() {
		return nil
	}
	return err
}
