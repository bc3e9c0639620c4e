// Package action does configured actions for programs: named verbs with a schema, of which the program gives the arguments
// and nothing else.
package action

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"glovebox"
	"glovebox/internal/broker"
)

// Config is what Actions are made of. It is read by New only.
type Config struct {
	// Actions are those of the configuration. They were checked.
	Actions []broker.Action
	// Send sends a request, with the secret of that name (empty: none) where the action's configuration has one.
	Send func(ctx context.Context, run broker.Run, secret string, r *http.Request) (*http.Response, error)
	// Start runs a program outside, with input on its standard input, and returns what it printed, at most a MiB and a byte.
	// An error means that it is not known to have done anything.
	Start func(ctx context.Context, command []string, input []byte) (output []byte, exit int, err error)
	// Scrub takes what must not be seen out of what an action answered.
	Scrub func(run broker.Run, text []byte) []byte
	// Log gets one line for each call, without arguments; nil discards.
	Log *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Actions does actions for runs. Methods are safe for concurrent use.
type Actions struct {
	cfg   Config
	all   map[string]*verb
	board board
}

// verb is an action, ready to be done.
type verb struct {
	broker.Action
	schema   *jsonschema.Resolved
	template *template // nil: a command
	known    []string  // its arguments
}

// New makes Actions.
func New(cfg Config) (*Actions, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	a := &Actions{cfg: cfg, all: map[string]*verb{}, board: board{now: cfg.Now, waiting: map[string]*wait{}}}
	for _, c := range cfg.Actions {
		v, err := compile(c.Bounded())
		if err != nil {
			return nil, err
		}
		a.all[c.Name] = v
	}
	return a, nil
}

// Check tells what is wrong with the schema or the template of an action.
func Check(a broker.Action) error {
	_, err := compile(a.Bounded())
	return err
}

func compile(c broker.Action) (*verb, error) {
	wrong := func(key, fix, text string) error {
		e := glovebox.Errorf(glovebox.CodeInvalid, fix, "%s", text)
		e.Op = "actions." + c.Name + "." + key
		return e
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(c.Schema, &s); err != nil {
		return nil, wrong("schema", "write JSON Schema", "this is no JSON Schema")
	}
	if s.Type != "object" {
		return nil, wrong("schema", "write type: object at its top", "arguments are an object, the schema is of something else")
	}
	// What the schema refers to must lie in it: nothing is fetched.
	resolved, err := s.Resolve(nil)
	if err != nil {
		return nil, wrong("schema", "mend the schema; it may refer to nothing outside itself", err.Error())
	}
	v := &verb{Action: c, schema: resolved, known: slices.Sorted(maps.Keys(s.Properties))}
	if c.HTTP != nil {
		if v.template, err = newTemplate(c.HTTP, v.known, s.Required); err != nil {
			return nil, wrong("http", "see docs/secrets.md for templates", err.Error())
		}
	}
	return v, nil
}

// Pending are the calls that wait for the owner, oldest first.
func (a *Actions) Pending() []glovebox.Approval { return a.board.list() }

// Decide gives the owner's word about one. The first word counts: a second one is a conflict.
func (a *Actions) Decide(id string, approve bool) (glovebox.Approval, error) {
	return a.board.decide(id, approve)
}

// Bounds of what one run may have at once.
const (
	maxArguments = 256 << 10
	maxResult    = 1 << 20
	maxAtOnce    = 8
	maxKeys      = 256
	maxKept      = 8 << 20 // of answers kept for idempotency keys
	maxKey       = 128
)

// Run is what one run may do. It serves its program. Methods are safe for concurrent use.
type Run struct {
	actions *Actions
	run     broker.Run
	granted []string
	life    context.Context
	end     context.CancelFunc
	atOnce  chan struct{}
	working sync.WaitGroup

	mu     sync.Mutex
	closed bool
	calls  map[string]int64
	keys   map[string]*keyed
	kept   int
}

// keyed is a call with an idempotency key. The rest is set when done is closed.
type keyed struct {
	sum  [32]byte
	done chan struct{}
	answer
}

// answer is what a program is told.
type answer struct {
	status int
	body   []byte
	acted  bool // something was done, or may have been
}

// Open begins to do actions for a run: those that were granted and no others. The caller closes it at the run's end.
func (a *Actions) Open(run broker.Run, granted []string) *Run {
	life, end := context.WithCancel(context.Background())
	return &Run{actions: a, run: run, granted: slices.Clone(granted), life: life, end: end,
		atOnce: make(chan struct{}, maxAtOnce), calls: map[string]int64{}, keys: map[string]*keyed{}}
}

// Close ends what is under way and what waits for approval, and returns when nothing of it goes on.
func (r *Run) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.end()
	r.working.Wait()
}

// enter begins a request; it is false when the run has ended.
func (r *Run) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.working.Add(1)
	return true
}

// problem is an answer that says what is wrong.
func problem(status int, reason, ask, format string, args ...any) answer {
	body, err := encode(map[string]string{"error": fmt.Sprintf(format, args...), "reason": reason, "ask": ask})
	if err != nil {
		body = []byte(`{"error":"internal"}`)
	}
	return answer{status: status, body: body}
}

// ServeHTTP answers GET /actions and POST /actions/NAME.
func (r *Run) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var a answer
	name, isCall := strings.CutPrefix(req.URL.Path, "/actions/")
	switch {
	case !r.enter():
		a = problem(http.StatusServiceUnavailable, "ended", "start another run", "the run has ended")
	case (req.URL.Path == "/actions" || req.URL.Path == "/actions/") && req.Method == http.MethodGet:
		a = r.list()
		r.working.Done()
	case isCall && req.Method == http.MethodPost:
		a = r.call(req, name)
		r.working.Done()
	case isCall:
		a = problem(http.StatusMethodNotAllowed, "method", "use POST", "an action is called by POST")
		r.working.Done()
	default:
		a = problem(http.StatusNotFound, "path", "use GET /actions or POST /actions/NAME", "there is nothing at this path")
		r.working.Done()
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(a.status)
	_, _ = w.Write(append(slices.Clone(a.body), '\n')) // a program that is gone needs no answer
}

// listed is one action as programs see it.
type listed struct {
	Name     string          `json:"name"`
	Schema   json.RawMessage `json:"schema"`
	Approval bool            `json:"approval"`
	Left     int64           `json:"calls_left"`
}

func (r *Run) list() answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []listed{}
	for _, name := range slices.Sorted(slices.Values(r.granted)) {
		if v := r.actions.all[name]; v != nil {
			all = append(all, listed{name, v.Schema, v.Approval, v.PerRun - r.calls[name]})
		}
	}
	body, err := encode(map[string]any{"actions": all})
	if err != nil {
		return problem(http.StatusInternalServerError, "internal", "report this", "the list cannot be written")
	}
	return answer{status: http.StatusOK, body: body}
}

// call is one call of an action, from the request to what is answered.
func (r *Run) call(req *http.Request, name string) answer {
	v := r.actions.all[name]
	if v == nil || !slices.Contains(r.granted, name) {
		return problem(http.StatusForbidden, "action-not-allowed", "ask the operator to allow it in policy.actions",
			"there is no action %.80q for this run", name)
	}
	args, wrong := v.arguments(req)
	if wrong != nil {
		return *wrong
	}
	what, err := v.prepare(args)
	if err != nil {
		return problem(http.StatusBadRequest, "arguments", "give other arguments: GET /actions has the schema", "%s", err)
	}
	key, given := req.Header["Idempotency-Key"]
	if !given {
		return r.do(req.Context(), v, what)
	}
	if len(key) != 1 || key[0] == "" || len(key[0]) > maxKey ||
		strings.ContainsFunc(key[0], func(c rune) bool { return c <= ' ' || c > '~' }) {
		return problem(http.StatusBadRequest, "idempotency-key", "use up to 128 plain characters, once",
			"the Idempotency-Key is none")
	}
	return r.once(req.Context(), v, what, name+" "+key[0])
}

// arguments reads them and holds them to the schema.
func (v *verb) arguments(req *http.Request) (map[string]any, *answer) {
	wrong := func(format string, a ...any) *answer {
		p := problem(http.StatusBadRequest, "arguments", "send a JSON object: GET /actions has the schema", format, a...)
		return &p
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, maxArguments+1))
	switch {
	case err != nil:
		return nil, wrong("the arguments cannot be read")
	case len(body) > maxArguments:
		return nil, wrong("the arguments have more than %d bytes", maxArguments)
	case len(bytes.TrimSpace(body)) == 0:
		body = []byte("{}")
	}
	var plain, exact map[string]any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if json.Unmarshal(body, &plain) != nil || d.Decode(&exact) != nil || plain == nil {
		return nil, wrong("the arguments are no JSON object")
	}
	for name := range plain {
		if !slices.Contains(v.known, name) {
			return nil, wrong("there is no argument %.80q; there are %s", name, strings.Join(v.known, ", "))
		}
	}
	if err := v.schema.Validate(plain); err != nil {
		return nil, wrong("the arguments do not fit the schema: %.300s", err)
	}
	return exact, nil
}

// prepare makes exactly what will be done.
func (v *verb) prepare(args map[string]any) (*prepared, error) {
	if v.template != nil {
		return v.template.fill(args)
	}
	input, err := encode(args)
	if err != nil {
		return nil, errors.New("the arguments cannot be written")
	}
	return &prepared{command: v.Command, body: input}, nil
}
