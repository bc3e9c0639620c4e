package broker

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"glovebox"
	"glovebox/internal/egress"
)

// Spec is one secret of the configuration: where its value is, and for which requests it is lent. It holds no value. It is
// read-only once it was checked.
type Spec struct {
	// Name is how requests ask for it, and the variable that has its placeholder inside.
	Name string `json:"name"`

	// Exactly one source: a file, a variable of Glovebox's own environment, or a command that prints the value. Env is also
	// told where the value is of no other secret; Pass are variables that the command gets beside PATH.
	File    string   `json:"file,omitempty"`
	Env     string   `json:"env,omitempty"`
	Command []string `json:"command,omitempty"`
	Pass    []string `json:"pass,omitempty"`

	// Mint makes short-lived tokens of what the source holds, and lends those; nil lends the value itself.
	Mint *Tokens `json:"mint,omitempty"`

	// Hosts are HOST or HOST:PORT, over https alone; port 443 where none is named. Methods and Paths narrow the requests, as
	// in an EgressRule. A secret without hosts is lent to nobody: tokens and actions are made with it.
	Hosts   []string `json:"hosts,omitempty"`
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`

	// Attach is how the value is added to requests; Placeholder is where requests have a placeholder that is replaced.
	// Exactly one is set.
	Attach      Place `json:"attach,omitempty"`
	Placeholder Place `json:"placeholder,omitempty"`
	// Header and Query name what PlaceHeader and PlaceQuery use; Prefix stands before the value in a header. User is the
	// first half of PlaceBasic and PlaceGit; without it the value of PlaceBasic is USER:PASSWORD.
	Header string `json:"header,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	Query  string `json:"query,omitempty"`
	User   string `json:"user,omitempty"`
	// Region, Service and AccessKeyID are for PlaceSigV4. Without AccessKeyID the value is the JSON of a credential_process.
	Region      string `json:"region,omitempty"`
	Service     string `json:"service,omitempty"`
	AccessKeyID string `json:"access_key_id,omitempty"`

	// Shape is what a placeholder looks like: plain (the default), openai, github, aws, or a prefix followed by an ellipsis.
	Shape string `json:"shape,omitempty"`
	// OnViolation is what happens when a placeholder is sent elsewhere: block (the default) refuses the request, end ends the
	// run too.
	OnViolation string `json:"on_violation,omitempty"`
	// Foreign is what happens to other credentials of a request: drop (the default) or refuse.
	Foreign string `json:"foreign,omitempty"`
	// StripHeaders and StripQuery are further places of credentials at these hosts.
	StripHeaders []string `json:"strip_headers,omitempty"`
	StripQuery   []string `json:"strip_query,omitempty"`
}

// Place is where a request has a credential.
type Place string

// The places. PlaceGit is PlaceBasic for git over https; PlaceSigV4 is a signature of AWS.
const (
	PlaceBearer Place = "bearer"
	PlaceHeader Place = "header"
	PlaceQuery  Place = "query"
	PlaceBasic  Place = "basic"
	PlaceGit    Place = "git"
	PlaceSigV4  Place = "sigv4"
)

// Values of Spec.OnViolation and Spec.Foreign.
const (
	ViolationBlock = "block"
	ViolationEnd   = "end"
	ForeignDrop    = "drop"
	ForeignRefuse  = "refuse"
)

// Place is where the credential goes.
func (s *Spec) Place() Place {
	if s.Attach != "" {
		return s.Attach
	}
	return s.Placeholder
}

// Kept tells of a secret that is lent to nobody.
func (s *Spec) Kept() bool { return len(s.Hosts) == 0 && s.Place() == "" }

// GoString tells two specs apart by what they say: it implements fmt.GoStringer.
func (s Spec) GoString() string {
	text, err := json.Marshal(s)
	if err != nil {
		return err.Error() // which nothing that a Spec holds can cause
	}
	return string(text)
}

// Source tells where the value is, for people.
func (s *Spec) Source() string {
	switch {
	case s.Mint != nil && s.Mint.Sourceless():
		return "made here"
	case s.File != "":
		return "file " + s.File
	case s.Env != "":
		return "variable " + s.Env
	case len(s.Command) > 0:
		return "command " + s.Command[0]
	}
	return "none"
}

// Endpoint is a host and port for which a secret is.
type Endpoint struct {
	Host egress.Host
	Port uint16
}

// String is HOST:PORT.
func (e Endpoint) String() string { return e.Host.String() + ":" + strconv.Itoa(int(e.Port)) }

// ParseEndpoint reads HOST or HOST:PORT. A pattern, an address and a name that never leaves are errors.
func ParseEndpoint(v string) (Endpoint, error) {
	name, port, named := strings.Cut(v, ":")
	e := Endpoint{Port: 443}
	if named {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return e, fmt.Errorf("%.20q is no port", port)
		}
		e.Port = uint16(n)
	}
	if strings.Contains(name, "*") {
		return e, fmt.Errorf("a secret is bound to hosts by name: %.100q could become anybody's", name)
	}
	p, err := egress.ParsePattern(name) // as rules are read: letters of other scripts are converted
	if err != nil {
		return e, err
	}
	if e.Host, err = egress.ParseHost(p.String()); err != nil {
		return e, err
	}
	return e, nil
}

// Endpoints are the hosts of s, which was checked.
func (s *Spec) Endpoints() ([]Endpoint, error) {
	list := make([]Endpoint, 0, len(s.Hosts))
	for _, h := range s.Hosts {
		e, err := ParseEndpoint(h)
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

// Rules judge whether a request is one for which s is lent.
func (s *Spec) Rules() (*egress.Rules, error) {
	list, err := s.Endpoints()
	if err != nil {
		return nil, err
	}
	var rules []glovebox.EgressRule
	for _, e := range list {
		rules = append(rules, glovebox.EgressRule{Host: e.Host.String(), Ports: []int{int(e.Port)},
			Protocols: []string{string(egress.HTTPS)}, Methods: s.Methods, Paths: s.Paths})
	}
	return egress.Compile(rules)
}

// wrong is what is wrong with a key of a secret: Op is the key below secrets.
func (s *Spec) wrong(key, fix, format string, args ...any) error {
	e := glovebox.Errorf(glovebox.CodeInvalid, fix, format, args...)
	e.Op = "secrets." + s.Name
	if key != "" {
		e.Op += "." + key
	}
	return e
}

// CheckAll refuses secrets that cannot be lent as they are said, or of which it is not clear which is meant.
func CheckAll(specs []Spec) error {
	for i := range specs {
		if err := specs[i].check(); err != nil {
			return err
		}
		if err := specs[i].checkMint(specs); err != nil {
			return err
		}
		for j := range i {
			if err := specs[i].against(&specs[j]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Spec) check() error {
	if !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`).MatchString(s.Name) {
		return s.wrong("", "use letters, digits and underscores",
			"%.80q cannot be the name of a variable, as a secret's must", s.Name)
	}
	if slices.Contains([]string{"PATH", "HOME", "TMPDIR", "LANG", "USER", "SHELL", "PWD"}, s.Name) ||
		strings.HasPrefix(s.Name, "LD_") {
		return s.wrong("", "give it a name of its own", "%s is a variable that programs need for something else", s.Name)
	}
	parts := []func() error{s.checkSource, s.checkHosts, s.checkPlace, s.checkRest}
	if s.Kept() && s.Mint == nil {
		parts = []func() error{s.checkSource}
	}
	for _, part := range parts {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Spec) checkSource() error {
	sources := 0
	for _, set := range []bool{s.File != "", s.Env != "", len(s.Command) > 0} {
		if set {
			sources++
		}
	}
	variable := regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	switch {
	case s.Mint != nil && s.Mint.Sourceless() && sources == 0:
		return nil
	case s.Mint != nil && s.Mint.Sourceless():
		return s.wrong("", "leave file, env and command out", "such tokens are made of nothing that a source holds")
	case sources != 1:
		return s.wrong("", "write one of file: /path, env: NAME, command: [/path/of/program, ARG]",
			"it has %d sources, where it needs one", sources)
	case s.File != "" && !plainPath(s.File):
		return s.wrong("file", "write an absolute path, without ~, variables, . or ..",
			"the file is not named by a plain absolute path")
	case s.Env != "" && !variable.MatchString(s.Env):
		return s.wrong("env", "write the name of a variable", "%.80q is no name of a variable", s.Env)
	case len(s.Command) > 0 && !plainPath(s.Command[0]):
		return s.wrong("command", "write the program's absolute path; there is no shell",
			"the program is not named by a plain absolute path")
	case len(s.Pass) > 0 && len(s.Command) == 0:
		return s.wrong("pass", "leave it out", "there is no command to pass variables to")
	}
	for _, name := range s.Pass {
		if !variable.MatchString(name) || strings.HasPrefix(name, "LD_") {
			return s.wrong("pass", "write names of variables", "%.80q cannot be passed on", name)
		}
	}
	for _, arg := range s.Command {
		if strings.ContainsRune(arg, 0) {
			return s.wrong("command", "leave the byte out", "an argument has a byte of zero")
		}
	}
	return nil
}

func plainPath(p string) bool {
	return filepath.IsAbs(p) && filepath.Clean(p) == p && !strings.ContainsRune(p, 0)
}

func (s *Spec) checkHosts() error {
	if len(s.Hosts) == 0 {
		return s.wrong("hosts", "write hosts: [api.example.com]", "no host is named, so that it could be lent for none")
	}
	seen := map[Endpoint]bool{}
	for _, h := range s.Hosts {
		e, err := ParseEndpoint(h)
		if err != nil {
			return s.wrong("hosts", "write names such as api.example.com or api.example.com:8443", "%s", err)
		}
		if seen[e] {
			return s.wrong("hosts", "keep one of them", "%s is there twice", e)
		}
		seen[e] = true
	}
	if _, err := s.Rules(); err != nil {
		return s.wrong("", "write methods and paths as those of egress rules", "%s", err)
	}
	return nil
}

func (s *Spec) checkPlace() error {
	if (s.Attach == "") == (s.Placeholder == "") {
		return s.wrong("attach", "write attach: bearer, or another of "+words(attachPlaces),
			"it needs attach or placeholder, and not both")
	}
	known, key := attachPlaces, "attach"
	if s.Placeholder != "" {
		known, key = placeholderPlaces, "placeholder"
	}
	p := s.Place()
	if !slices.Contains(known, p) {
		return s.wrong(key, "write one of "+words(known), "%.40q is no place of a credential", string(p))
	}
	for _, k := range []struct {
		key, value string
		places     []Place
		must       bool
	}{
		{"header", s.Header, []Place{PlaceHeader}, true},
		{"prefix", s.Prefix, []Place{PlaceHeader}, false},
		{"query", s.Query, []Place{PlaceQuery}, true},
		{"user", s.User, []Place{PlaceBasic, PlaceGit}, false},
		{"region", s.Region, []Place{PlaceSigV4}, true},
		{"service", s.Service, []Place{PlaceSigV4}, true},
		{"access_key_id", s.AccessKeyID, []Place{PlaceSigV4}, false},
	} {
		mine := slices.Contains(k.places, p)
		switch {
		case k.value != "" && !mine:
			return s.wrong(k.key, "leave it out", "%s has no meaning with %s: %s", k.key, key, p)
		case k.value == "" && mine && k.must:
			return s.wrong(key, "add "+k.key, "%s: %s needs %s", key, p, k.key)
		case strings.ContainsFunc(k.value, func(r rune) bool { return r < ' ' || r > '~' }):
			return s.wrong(k.key, "use plain characters", "%s has a character that cannot be sent", k.key)
		}
	}
	if strings.Contains(s.User, ":") {
		return s.wrong("user", "leave the colon out", "a user's name with a colon cannot be told from a password")
	}
	return s.checkNames()
}

var attachPlaces = []Place{PlaceBearer, PlaceHeader, PlaceQuery, PlaceBasic, PlaceGit, PlaceSigV4}

var placeholderPlaces = []Place{PlaceBearer, PlaceHeader, PlaceQuery, PlaceBasic}

func words(places []Place) string {
	list := make([]string, 0, len(places))
	for _, p := range places {
		list = append(list, string(p))
	}
	return strings.Join(list, ", ")
}

// unusable are headers that are about the connection or the body.
var unusable = []string{"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect",
	"content-type", "content-encoding", "accept-encoding", "range", "keep-alive"}

func (s *Spec) checkNames() error {
	token := regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")
	for _, h := range append([]string{s.Header}, s.StripHeaders...) {
		if h != "" && (!token.MatchString(h) || slices.Contains(unusable, strings.ToLower(h))) {
			return s.wrong("header", "write a header such as X-Api-Key", "%.100q is no header for a credential", h)
		}
	}
	name := regexp.MustCompile(`^[A-Za-z0-9_.~-]{1,100}$`)
	for _, q := range append([]string{s.Query}, s.StripQuery...) {
		if q != "" && !name.MatchString(q) {
			return s.wrong("query", "write a name such as key", "%.100q is no plain name of a parameter", q)
		}
	}
	return nil
}

func (s *Spec) checkRest() error {
	if _, err := parseShape(s.Shape); err != nil {
		return s.wrong("shape", "write plain, openai, github, aws, or a prefix such as sk-…", "%s", err)
	}
	if !slices.Contains([]string{"", ViolationBlock, ViolationEnd}, s.OnViolation) {
		return s.wrong("on_violation", "write block or end", "%.40q is nothing that can be done", s.OnViolation)
	}
	if !slices.Contains([]string{"", ForeignDrop, ForeignRefuse}, s.Foreign) {
		return s.wrong("foreign", "write drop or refuse", "%.40q is nothing that can be done", s.Foreign)
	}
	return nil
}

// against refuses two secrets for one request: which is meant would be a matter of order.
func (s *Spec) against(o *Spec) error {
	if s.Name == o.Name {
		return s.wrong("", "give each a name of its own", "two secrets are called %s", s.Name)
	}
	mine, err := s.Endpoints()
	if err != nil {
		return err
	}
	theirs, err := o.Endpoints()
	if err != nil {
		return err
	}
	for _, e := range mine {
		if slices.Contains(theirs, e) && methodsMeet(s.Methods, o.Methods) && pathsMeet(s.Paths, o.Paths) {
			return s.wrong("hosts", "give them methods or paths that do not meet, or other hosts",
				"%s and %s are both for the same requests to %s", o.Name, s.Name, e)
		}
	}
	return nil
}

// methodsMeet tells whether both sets have a method. Whoever may GET may HEAD.
func methodsMeet(a, b []string) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	a, b = withHead(a), withHead(b)
	return slices.ContainsFunc(a, func(m string) bool { return slices.Contains(b, m) })
}

func withHead(methods []string) []string {
	if slices.Contains(methods, "GET") {
		return append(slices.Clone(methods), "HEAD")
	}
	return methods
}

// pathsMeet tells whether both sets of patterns could have a path. It may say so of some that have none.
func pathsMeet(a, b []string) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	literal := func(p string) string { p, _, _ = strings.Cut(p, "*"); return strings.TrimSuffix(p, "/") }
	for _, x := range a {
		for _, y := range b {
			lx, ly := literal(x), literal(y)
			switch {
			case !strings.Contains(x, "*") && !strings.Contains(y, "*"):
				if lx == ly {
					return true
				}
			case strings.HasPrefix(lx, ly) || strings.HasPrefix(ly, lx):
				return true
			}
		}
	}
	return false
}

// CheckFile refuses a file of a secret that others can read or change, or that is none: info is of the file itself, euid who
// reads it.
func CheckFile(name string, info fs.FileInfo, euid int) error {
	refuse := func(fix, why string, args ...any) error {
		e := glovebox.Errorf(glovebox.CodeUnavailable, fix, "secret %s is not read from its file: %s", name,
			fmt.Sprintf(why, args...))
		e.Op = "secrets." + name + ".file"
		return e
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch perm := info.Mode().Perm(); {
	case !ok || !info.Mode().IsRegular():
		return refuse("name the file itself", "it is no regular file")
	case int(st.Uid) != euid && st.Uid != 0:
		return refuse("chown it to the user who runs glovebox", "it belongs to user %d", st.Uid)
	case perm != 0o600 && perm != 0o400:
		return refuse("chmod 600 it", "its mode is %04o: others may read or change it", perm)
	case st.Nlink > 1:
		return refuse("make a file of its own for it", "it has other names, by hard links")
	}
	return nil
}
