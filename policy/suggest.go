package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"glovebox"
	"glovebox/internal/egress"
)

// Suggestion is what would have let a run reach what it tried to reach. It is for a person to judge: whoever may reach a
// host may send it whatever the program can read.
type Suggestion struct {
	// Rules allow what was seen and nothing else that could be left out.
	Rules []SuggestedRule `json:"rules"`
	// Left is what no such rule lets through.
	Left []LeftOut `json:"left"`
	// Whole is false where the record does not have all that the run tried.
	Whole bool `json:"whole"`
}

// SuggestedRule is a rule and why it is suggested.
type SuggestedRule struct {
	Rule glovebox.EgressRule `json:"rule"`
	// Allow is the same for the command line, where methods and paths cannot be said.
	Allow string `json:"allow"`
	// Tried is how often what it allows was tried, and Refused how often in vain.
	Tried   int64 `json:"tried"`
	Refused int64 `json:"refused"`
	// Guessed is true where the program did not come to say what it would speak.
	Guessed bool `json:"guessed,omitempty"`
}

// LeftOut is a decision that stands whatever rule is added.
type LeftOut struct {
	Flow glovebox.EgressFlow `json:"flow"`
	Why  string              `json:"why"`
}

// maxPaths is how many paths of a host are suggested one by one. Beyond it the folders that they are in are.
const maxPaths = 12

// Suggest finds the narrowest rules for what a run's gateway decided.
func Suggest(flows []glovebox.EgressFlow) Suggestion {
	s := Suggestion{Rules: []SuggestedRule{}, Left: []LeftOut{}, Whole: true}
	wants := map[place]*want{}
	for _, f := range flows {
		if f.Host == "" {
			s.Whole = false
			continue
		}
		if h, err := egress.ParseHost(f.Host); err == nil && f.Allowed && h.Reserved() {
			continue // the broker, which is asked without a rule
		}
		at, why := placeOf(f)
		if why != "" {
			s.Left = append(s.Left, LeftOut{f, why})
			continue
		}
		w := wants[at]
		if w == nil {
			w = &want{methods: map[string][]string{}}
		}
		if !w.add(f) {
			s.Left = append(s.Left, LeftOut{f, "its path has no form that a rule could name"})
			continue
		}
		wants[at] = w
	}
	for at, w := range wants {
		s.Rules = append(s.Rules, w.rules(at)...)
	}
	slices.SortFunc(s.Rules, func(a, b SuggestedRule) int {
		return cmp.Or(cmp.Compare(a.Rule.Host, b.Rule.Host), cmp.Compare(a.Allow, b.Allow),
			cmp.Compare(strings.Join(a.Rule.Methods, " "), strings.Join(b.Rule.Methods, " ")))
	})
	return s
}

// place is where something was tried, and what was to be spoken there.
type place struct {
	host     egress.Host
	port     int
	protocol egress.Protocol // empty: http or https
	guessed  bool
}

// cannot are the reasons that no rule which allows mends, and what does.
var cannot = map[egress.Reason]string{
	egress.ReasonNameInvalid:       "it is no name of a host",
	egress.ReasonIPLiteral:         "rules are about names: have the program use one",
	egress.ReasonUpstreamIPPrivate: "its name leads to a private address: where that is meant, the rule needs allow_private",
	egress.ReasonSNIMissing:        "the program did not say which server it wants; a rule with mode sni does not help either",
	egress.ReasonSNIMismatch:       "the program asked one host for another; if it needs both, it must connect to each",
	egress.ReasonECH:               "the server's name was encrypted; have the program switch encrypted client hello off",
	egress.ReasonAuthorityMismatch: "the request was for another host than the connection",
	egress.ReasonConnect:           "the gateway is no proxy: have the program connect to the host itself",
	egress.ReasonSecretWrongHost:   "the placeholder of a secret was sent to a host that it is not for",
	egress.ReasonSecretLocation:    "the placeholder of a secret was in a place where it is not replaced",
	egress.ReasonForeignCredential: "the program sent a credential of its own to a host that has a secret bound",
	egress.ReasonQuota:             "it was too much at a time",
	egress.ReasonBudget:            "the run's bytes were used up: --egress-limit",
}

// placeOf says where a rule would have to allow f, or why none can.
func placeOf(f glovebox.EgressFlow) (at place, why string) {
	host, err := egress.ParseHost(f.Host)
	if err != nil {
		return at, cannot[egress.ReasonIPLiteral]
	}
	if _, err := egress.ParsePattern(host.String()); err != nil {
		return place{}, "no rule opens such a name: it is a machine's own, or nobody's"
	}
	reason := egress.Reason(f.Reason)
	switch {
	case f.Allowed:
	case reason == egress.ReasonHostNotAllowed && f.Rule != "":
		return at, fmt.Sprintf("the rule %s denies it, which beats all that allow", quote(f.Rule))
	case cannot[reason] != "":
		return at, cannot[reason]
	case f.Port == 0:
		return at, "its name was asked for, and nothing was sent to it"
	}
	at = place{host: host, port: f.Port}
	switch {
	case f.Layer == "tcp" && (f.Allowed || reason == egress.ReasonNotHTTPOrTLS):
		at.protocol = egress.TCP
	case reason == egress.ReasonClientTLS || f.Layer == "tls" && (f.Allowed || reason == egress.ReasonNotHTTPOrTLS):
		at.protocol = egress.TLS
	case f.Port == 443:
		at.protocol = egress.HTTPS
	case f.Port == 80:
		at.protocol = egress.HTTP
	case f.Layer == "tcp" && !webPort(f.Port):
		at.protocol, at.guessed = egress.TCP, true
	case f.Layer == "tcp":
		at.guessed = true
	}
	return at, ""
}

// webPort is true of ports at which nearly always HTTP is spoken.
func webPort(port int) bool {
	return slices.Contains([]int{80, 443, 3000, 5000, 9000, 9443}, port) || port >= 8000 && port < 9000
}

// LetThrough is true of what the rules allowed, also where the server could then not be reached.
func LetThrough(f glovebox.EgressFlow) bool {
	return f.Allowed || f.Reason == string(egress.ReasonUpstreamFailed) || f.Reason == string(egress.ReasonUpstreamTLS)
}

// want is what was wanted at a place.
type want struct {
	methods        map[string][]string // method → paths
	webSocket      bool
	tried, refused int64
}

// add takes in one decision, or says that it cannot be.
func (w *want) add(f glovebox.EgressFlow) bool {
	path := ""
	if f.Method != "" {
		var err error
		if path, err = egress.CanonicalPath(f.Path); err != nil || strings.Contains(path, "**") {
			return false
		}
	}
	n := max(f.Count, 1)
	w.tried += n
	if !LetThrough(f) {
		w.refused += n
	}
	w.webSocket = w.webSocket || f.Reason == string(egress.ReasonWebSocket)
	// A connection of which nothing more is known was refused or failed as a whole.
	if f.Method != "" && !slices.Contains(w.methods[f.Method], path) {
		w.methods[f.Method] = append(w.methods[f.Method], path)
	}
	return true
}

// rules are the narrowest rules for a place: one for each set of paths.
func (w *want) rules(at place) []SuggestedRule {
	base := SuggestedRule{Rule: glovebox.EgressRule{Host: at.host.String()}, Tried: w.tried, Refused: w.refused,
		Guessed: at.guessed}
	base.Allow = at.host.String()
	if at.protocol != "" {
		base.Rule.Protocols = []string{string(at.protocol)}
		base.Allow = string(at.protocol) + "://" + base.Allow
	}
	usual := map[egress.Protocol]int{egress.HTTPS: 443, egress.HTTP: 80, egress.TLS: 443}
	if usual[at.protocol] != at.port {
		base.Rule.Ports = []int{at.port}
		base.Allow += fmt.Sprintf(":%d", at.port)
	}
	if len(w.methods) == 0 {
		return []SuggestedRule{base}
	}
	w.methods["HEAD"] = slices.DeleteFunc(w.methods["HEAD"], func(p string) bool {
		return slices.Contains(w.methods["GET"], p)
	})
	byPaths := map[string][]string{}
	for method, paths := range w.methods {
		if len(paths) == 0 {
			continue // of HEAD, which whoever may GET may too
		}
		paths = folders(paths)
		byPaths[strings.Join(paths, "\n")] = append(byPaths[strings.Join(paths, "\n")], method)
	}
	var all []SuggestedRule
	for paths, methods := range byPaths {
		one := base
		one.Rule.Methods, one.Rule.WebSocket = methods, w.webSocket
		if paths != "" {
			one.Rule.Paths = strings.Split(paths, "\n")
		}
		slices.Sort(one.Rule.Methods)
		all = append(all, one)
	}
	return all
}

// folders are paths in order, or where there are many the folders that they are in; none, which means all, where those are
// many too.
func folders(paths []string) []string {
	slices.Sort(paths)
	if len(paths) <= maxPaths {
		return paths
	}
	var in []string
	for _, p := range paths {
		folder := p[:strings.LastIndexByte(p, '/')] + "/**"
		if last := p[len(folder)-2:]; strings.Contains(last, "%2F") || strings.Contains(last, "%5C") {
			folder = p // which no star stands for
		}
		if !slices.Contains(in, folder) {
			in = append(in, folder)
		}
	}
	if len(in) <= maxPaths {
		return in
	}
	return nil
}
