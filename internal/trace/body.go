package trace

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"glovebox"
)

// The kinds of records. There is at most one of each of the first three for a run.
const (
	kindStart   = "run.start"
	kindEnd     = "run.end"
	kindRefused = "run.refused"
	kindErased  = "trace.erased" // retention erased payloads
)

// How much of a run a record holds.
const (
	codeBytes   = 64 << 10 // code
	viewBytes   = 16 << 10 // each view of a result
	stringBytes = 1 << 10  // a name, an argument
	textBytes   = 4 << 10  // a sentence of Glovebox's own
	listItems   = 256      // arguments, names, inputs
	resultItems = 1000     // artifacts, flows
	listBytes   = 64 << 10 // any list
	bodyVersion = 2        // 1 is the form before there was a log
	saltBytes   = 32
)

// skeleton is what stays of a record for ever, and the leaf of the log. It holds no text of a caller's or of a program's,
// and no hash of one by which a short text could be guessed: those are in the payload. The order of the fields is part of
// its spelling.
type skeleton struct {
	Version int       `json:"v"`
	Kind    string    `json:"kind"`
	Run     string    `json:"run,omitempty"`
	Time    time.Time `json:"time"`
	// Payload is the hex SHA-256 of the payload's salt and body; empty when there is none.
	Payload string `json:"payload,omitempty"`
	// Found is set in a record that was written before there was a log and sealed later: unsealed, or altered when it was not
	// what its own hash said.
	Found string `json:"found,omitempty"`

	// Of run.start and run.refused.
	Principal *glovebox.Principal `json:"principal,omitempty"`
	Lang      string              `json:"lang,omitempty"`
	CodeBytes int64               `json:"code_bytes,omitempty"`
	Decision  *glovebox.Decision  `json:"decision,omitempty"` // without its sentences and hosts
	Image     string              `json:"image,omitempty"`
	Owner     *owner              `json:"owner,omitempty"`
	// Of run.end.
	State  string           `json:"state,omitempty"`
	Result *glovebox.Result `json:"result,omitempty"` // without its texts
	// Of run.refused and run.end.
	Error *glovebox.ErrorShown `json:"error,omitempty"` // without its sentences
	// Of trace.erased: the records whose payloads are no more.
	Erased []int64 `json:"erased,omitempty"`
}

// payload is the rest of a record: what can be erased.
type payload struct {
	Argv       []string                `json:"argv,omitempty"`
	Args       []string                `json:"args,omitempty"`
	Code       string                  `json:"code,omitempty"`
	CodeBase64 []byte                  `json:"code_base64,omitempty"` // in place of Code when that is not valid UTF-8
	CodeSHA256 string                  `json:"code_sha256,omitempty"`
	EnvNames   []string                `json:"env_names,omitempty"`
	Inputs     []glovebox.InputRecord  `json:"inputs,omitempty"`
	Decision   *sentences              `json:"decision,omitempty"`
	Result     *resultTexts            `json:"result,omitempty"`
	Cut        map[string]glovebox.Cut `json:"cut,omitempty"`
	Error      *glovebox.ErrorShown    `json:"error,omitempty"`
	Kept       *keptList               `json:"kept,omitempty"`
	// Found is the body of a record that was written before there was a log, exactly. It holds the fields above.
	Found []byte `json:"found,omitempty"`
}

// sentences are the texts of a decision: what a caller asked for is among the hosts.
type sentences struct {
	Reason  string                `json:"reason"`
	Fix     string                `json:"fix,omitempty"`
	Egress  []glovebox.EgressRule `json:"egress,omitempty"`
	Secrets []glovebox.SecretRef  `json:"secrets,omitempty"`
}

// sentencesOf parts them from what stays of a decision.
func sentencesOf(cut map[string]glovebox.Cut, d *glovebox.Decision) *sentences {
	s := &sentences{Reason: beginning(d.Reason, textBytes), Fix: beginning(d.Fix, textBytes),
		Egress: bounded(cut, "egress_rules", d.Grant.Egress, listItems, func(r glovebox.EgressRule) glovebox.EgressRule {
			r.ID, r.Host = beginning(r.ID, stringBytes), beginning(r.Host, stringBytes)
			return r
		}),
		Secrets: bounded(cut, "secrets", d.Grant.Secrets, listItems, func(r glovebox.SecretRef) glovebox.SecretRef {
			return glovebox.SecretRef{Name: beginning(r.Name, stringBytes), Host: beginning(r.Host, stringBytes)}
		})}
	d.Rule, d.Reason, d.Fix, d.Grant.Egress, d.Grant.Secrets = beginning(d.Rule, stringBytes), "", "", nil, nil
	return s
}

// resultTexts are the texts of a result.
type resultTexts struct {
	Reason    string                `json:"reason"`
	Stdout    glovebox.Untrusted    `json:"stdout"`
	Stderr    glovebox.Untrusted    `json:"stderr"`
	Artifacts []glovebox.Artifact   `json:"artifacts"`
	Skipped   []glovebox.Skipped    `json:"skipped"`
	Egress    []glovebox.EgressFlow `json:"egress"`
}

func (t *Trace) startRecord(kind string, s Start, refusal *glovebox.Error) (*record, error) {
	if s.ID == "" || len(s.ID) > stringBytes || !utf8.ValidString(s.ID) {
		return nil, fmt.Errorf("the id %q is none", beginning(s.ID, 64))
	}
	// A tenant is a boundary: it must read back as it was, so it is never shortened.
	if len(s.Principal.Tenant) > stringBytes || !utf8.ValidString(s.Principal.Tenant) {
		return nil, fmt.Errorf("the tenant %q is none", beginning(s.Principal.Tenant, 64))
	}
	cut := map[string]glovebox.Cut{}
	who, d := s.Principal, s.Decision
	who.Name = beginning(who.Name, stringBytes)
	p := payload{
		Argv: firsts(cut, "argv", s.Argv), Args: firsts(cut, "args", s.Args), EnvNames: firsts(cut, "env_names", s.EnvNames),
		Inputs: bounded(cut, "inputs", s.Inputs, listItems, func(in glovebox.InputRecord) glovebox.InputRecord {
			in.Name = beginning(in.Name, stringBytes)
			return in
		}),
		Decision: sentencesOf(cut, &d), Cut: cut, Error: shown(refusal),
	}
	k := skeleton{Kind: kind, Run: s.ID, Time: t.now(), Principal: &who, Lang: beginning(s.Lang, stringBytes),
		CodeBytes: int64(len(s.Code)), Decision: &d, Image: beginning(s.Image, stringBytes), Owner: &t.self, Error: bare(p.Error)}
	if len(s.Code) > 0 {
		sum := sha256.Sum256(s.Code)
		p.CodeSHA256 = hex.EncodeToString(sum[:])
		if kept := s.Code[:min(len(s.Code), codeBytes)]; utf8.Valid(s.Code) {
			p.Code = beginning(string(s.Code[:min(len(s.Code), codeBytes+utf8.UTFMax)]), codeBytes)
		} else {
			p.CodeBase64 = kept
		}
	}
	return seal(k, &p)
}

func (t *Trace) endRecord(e End, state string, outputs []keptOutput) (*record, error) {
	p := payload{Error: shown(e.Err), Kept: listKept(outputs, nil)}
	k := skeleton{Kind: kindEnd, Run: e.ID, Time: t.now(), State: state, Error: bare(p.Error)}
	if e.Result != nil {
		p.Cut = map[string]glovebox.Cut{}
		p.Kept = listKept(outputs, e.Result.Artifacts)
		k.Result, p.Result = split(*boundedResult(p.Cut, *e.Result))
	}
	return seal(k, &p)
}

// split parts a result into what stays and what can be erased.
func split(res glovebox.Result) (*glovebox.Result, *resultTexts) {
	texts := &resultTexts{res.Reason, res.Stdout, res.Stderr, res.Artifacts, res.Skipped, res.Egress}
	res.Reason, res.Stdout, res.Stderr = "", "", ""
	res.Artifacts, res.Skipped, res.Egress = []glovebox.Artifact{}, []glovebox.Skipped{}, []glovebox.EgressFlow{}
	return &res, texts
}

// bare is an error without its sentences.
func bare(e *glovebox.ErrorShown) *glovebox.ErrorShown {
	if e == nil {
		return nil
	}
	return &glovebox.ErrorShown{Code: e.Code}
}

// seal spells a record and binds its payload to it, if it has one: by a hash over a salt of its own, so that an erased
// payload cannot be guessed from what stays.
func seal(k skeleton, p *payload) (*record, error) {
	var err error
	r := &record{}
	k.Version, k.Time = bodyVersion, k.Time.UTC().Round(0)
	if p != nil {
		if r.body, err = canonical(p); err != nil {
			return nil, err
		}
		r.salt = make([]byte, saltBytes)
		_, _ = rand.Read(r.salt) // never fails: it ends the program instead
		k.Payload = commitment(r.salt, r.body)
	}
	r.skeleton = k
	r.leaf, err = canonical(k)
	return r, err
}

// commitment is what a skeleton says of its payload.
func commitment(salt, body []byte) string {
	h := sha256.New()
	h.Write(salt)
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}

// boundedResult is res as a record keeps it. Trace is left out, since it is made of the record's own hash.
func boundedResult(cut map[string]glovebox.Cut, res glovebox.Result) *glovebox.Result {
	res.Trace = glovebox.TraceRef{}
	res.Reason = beginning(res.Reason, textBytes)
	res.Stdout, res.StdoutTruncated = boundedView(res.Stdout, res.StdoutTruncated)
	res.Stderr, res.StderrTruncated = boundedView(res.Stderr, res.StderrTruncated)
	same := func(a glovebox.Artifact) glovebox.Artifact { return a }
	res.Artifacts = bounded(cut, "artifacts", res.Artifacts, resultItems, same)
	res.Skipped = bounded(cut, "skipped", res.Skipped, resultItems, func(s glovebox.Skipped) glovebox.Skipped {
		s.Path, s.Reason = beginning(s.Path, stringBytes), beginning(s.Reason, stringBytes)
		return s
	})
	res.Egress = bounded(cut, "egress", res.Egress, resultItems, func(f glovebox.EgressFlow) glovebox.EgressFlow {
		f.Host, f.Reason, f.Rule = beginning(f.Host, stringBytes), beginning(f.Reason, stringBytes), beginning(f.Rule, stringBytes)
		f.Method, f.Path = beginning(f.Method, stringBytes), beginning(f.Path, stringBytes)
		return f
	})
	return &res
}

func boundedView(u glovebox.Untrusted, truncated bool) (glovebox.Untrusted, bool) {
	if len(u) <= viewBytes {
		return u, truncated
	}
	s, half := string(u), viewBytes/2
	tail := len(s) - half
	for tail < len(s) && !utf8.RuneStart(s[tail]) {
		tail++
	}
	head := beginning(s, half)
	left := tail - len(head)
	return glovebox.Untrusted(fmt.Sprintf("%s\n[%d bytes of this view are not in the record]\n%s", head, left, s[tail:])), true
}

// beginning is the first most bytes of s, without half a character at the end.
func beginning(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

func firsts(cut map[string]glovebox.Cut, name string, list []string) []string {
	return bounded(cut, name, list, listItems, func(s string) string { return beginning(s, stringBytes) })
}

// bounded is the beginning of a list, each item shortened. When anything is missing, cut tells what the whole list was.
func bounded[T any](cut map[string]glovebox.Cut, name string, list []T, items int, shorten func(T) T) []T {
	if list == nil {
		return nil
	}
	var size, used int64
	kept, whole, h := make([]T, 0, min(len(list), items)), true, sha256.New()
	for i, item := range list {
		line, err := json.Marshal(item)
		if err != nil { // plain strings and numbers always marshal
			panic(err)
		}
		line = append(line, '\n')
		size += int64(len(line))
		h.Write(line)
		if i >= items || len(kept) < i {
			whole = false
			continue
		}
		short := shorten(item)
		spelt, _ := json.Marshal(short)
		whole = whole && len(spelt)+1 == len(line)
		if used += int64(len(spelt)); used > listBytes {
			whole = false
			continue
		}
		kept = append(kept, short)
	}
	if !whole {
		cut[name] = glovebox.Cut{Items: int64(len(list)), Bytes: size, SHA256: hex.EncodeToString(h.Sum(nil))}
	}
	return kept
}

func shown(e *glovebox.Error) *glovebox.ErrorShown {
	if e == nil {
		return nil
	}
	return &glovebox.ErrorShown{Code: e.Code, Message: beginning(e.Public, textBytes), Fix: beginning(e.Fix, textBytes)}
}

// canonical spells v as JSON in one way: fields in the order of the type, names of maps sorted, one line. Every character
// that is not printable is escaped, so that no viewer of a record can be steered by what is in it.
func canonical(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if !bytes.ContainsFunc(b, func(r rune) bool { return r < ' ' || r > '~' }) {
		return b, nil
	}
	out := make([]byte, 0, len(b)+len(b)/8)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case unicode.IsPrint(r):
			out = append(out, b[:n]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = escape(escape(out, high), low)
		default:
			out = escape(out, r)
		}
		b = b[n:]
	}
	return out, nil
}

func escape(out []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	return append(out, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
}
