package broker

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"glovebox"
)

// Action is something that is done outside for a program that names it and gives arguments. Exactly one of HTTP and Command
// says what. It is read-only once it was checked.
type Action struct {
	// Name is how programs call it: http://broker.internal/actions/NAME.
	Name string `json:"name"`
	// Schema is the JSON Schema of the arguments, which are an object. Others than its properties are refused.
	Schema  json.RawMessage `json:"schema"`
	HTTP    *ActionHTTP     `json:"http,omitempty"`
	Command []string        `json:"command,omitempty"` // gets the arguments as JSON on its standard input; no shell
	// Approval demands that the owner approves each call. Wait is how long one waits for that; zero means 5 min.
	Approval bool          `json:"approval,omitempty"`
	Wait     time.Duration `json:"wait,omitempty"`
	// PerRun is how often a run may call it; zero means 100.
	PerRun int64 `json:"per_run,omitempty"`
	// Timeout bounds one call, without the wait for approval; zero means 30 s.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// ActionHTTP is a request. In its parts {NAME} stands for an argument: in the path for one segment, {+NAME} for several; in
// the query and in headers for its text; in the body, where it is a whole string, for its value.
type ActionHTTP struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"` // https alone, whose host is no argument
	Headers map[string]string `json:"headers,omitempty"`
	Body    json.RawMessage   `json:"body,omitempty"`
	Secret  string            `json:"secret,omitempty"` // that is added, as it says; its hosts must have the URL's
}

// GoString tells two actions apart by what they say: it implements fmt.GoStringer.
func (a Action) GoString() string {
	text, err := json.Marshal(a)
	if err != nil {
		return err.Error() // which nothing that a checked Action holds can cause
	}
	return string(text)
}

// Defaults and bounds of actions.
const (
	DefaultPerRun  = 100
	DefaultTimeout = 30 * time.Second
	DefaultWait    = 5 * time.Minute
	maxTimeout     = 10 * time.Minute
	maxWait        = 24 * time.Hour
)

// Bounded is a with its defaults filled in.
func (a Action) Bounded() Action {
	if a.PerRun == 0 {
		a.PerRun = DefaultPerRun
	}
	if a.Timeout == 0 {
		a.Timeout = DefaultTimeout
	}
	if a.Wait == 0 {
		a.Wait = DefaultWait
	}
	return a
}

// ActionName reports whether name can be an action's.
func ActionName(name string) bool {
	return regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`).MatchString(name)
}

// CheckActions refuses actions that cannot be done as they are said. Schemas and templates are looked at by who does them.
func CheckActions(actions []Action, secrets []Spec) error {
	for i := range actions {
		a := &actions[i]
		wrong := func(key, fix, format string, args ...any) error {
			e := glovebox.Errorf(glovebox.CodeInvalid, fix, format, args...)
			e.Op = strings.TrimSuffix("actions."+a.Name+"."+key, ".")
			return e
		}
		switch {
		case !ActionName(a.Name):
			return wrong("", "use small letters, digits, - and _", "%.80q cannot be the name of an action", a.Name)
		case slices.ContainsFunc(actions[:i], func(o Action) bool { return o.Name == a.Name }):
			return wrong("", "keep one of them", "the action is there twice")
		case (a.HTTP == nil) == (len(a.Command) == 0):
			return wrong("", "write http or command", "it needs one of http and command")
		case len(a.Schema) == 0:
			return wrong("schema", "write schema: {type: object, properties: {…}}", "nothing says what its arguments are")
		case len(a.Command) > 0 && !plainPath(a.Command[0]):
			return wrong("command", "write the program's absolute path; there is no shell",
				"the program is not named by a plain absolute path")
		case a.PerRun < 0:
			return wrong("per_run", "write 1 or more", "it could never be called")
		case a.Timeout < 0 || a.Timeout > maxTimeout:
			return wrong("timeout", "write at most 10m", "a call cannot take that long")
		case a.Wait < 0 || a.Wait > maxWait || a.Wait > 0 && !a.Approval:
			return wrong("wait", "write at most 24h, beside approval: true", "nothing waits for that long")
		case a.HTTP != nil:
			if err := a.HTTP.check(secrets, wrong); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *ActionHTTP) check(secrets []Spec, wrong func(key, fix, format string, args ...any) error) error {
	if !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete}, h.Method) {
		return wrong("http.method", "write GET, HEAD, POST, PUT, PATCH or DELETE", "%.20q is no method of an action", h.Method)
	}
	endpoint, err := h.Endpoint()
	if err != nil {
		return wrong("http.url", "write https://api.example.com/path/{NAME}", "%s", err)
	}
	if h.Secret == "" {
		return nil
	}
	i := slices.IndexFunc(secrets, func(s Spec) bool { return s.Name == h.Secret })
	if i < 0 {
		return wrong("http.secret", "name a configured secret", "there is no secret %.80q", h.Secret)
	}
	bound, err := secrets[i].Endpoints()
	if err != nil {
		return err
	}
	if !slices.Contains(bound, endpoint) || secrets[i].Attach == "" {
		return wrong("http.secret", "add "+endpoint.String()+" to secrets."+h.Secret+".hosts, with attach",
			"secret %s is not attached to requests to %s", h.Secret, endpoint)
	}
	return nil
}

// Endpoint is where the request goes.
func (h *ActionHTTP) Endpoint() (Endpoint, error) {
	rest, ok := strings.CutPrefix(h.URL, "https://")
	authority, _, _ := strings.Cut(rest, "/")
	authority, _, _ = strings.Cut(authority, "?")
	if u, err := url.Parse("https://" + authority); !ok || err != nil || u.User != nil || u.Host != authority {
		return Endpoint{}, glovebox.Errorf(glovebox.CodeInvalid, "", "this is no address of a server over https")
	}
	return ParseEndpoint(authority)
}
