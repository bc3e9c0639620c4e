// Package gitwire judges what plain git says over HTTPS: which requests are git's own, and which refs a push would change,
// before any byte of it goes to the server.
package gitwire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// Service is one of git's services over HTTP.
type Service string

// The services.
const (
	Fetch Service = "git-upload-pack"
	Push  Service = "git-receive-pack"
)

// Bounds of the list of refs that a push would change.
const (
	maxCommands = 1000
	maxList     = 1 << 20
	maxPacket   = 65520
	headPacket  = 4
)

// Request tells which service of git a request is of: the smart protocol's two requests of each, and nothing else. It is an
// error where it is none of them: what a token for git is lent for is git alone.
func Request(method string, u *url.URL) (Service, error) {
	switch {
	case method == http.MethodGet && strings.HasSuffix(u.Path, "/info/refs"):
		switch u.RawQuery {
		case "service=" + string(Fetch):
			return Fetch, nil
		case "service=" + string(Push):
			return Push, nil
		}
	case method == http.MethodPost && u.RawQuery == "":
		for _, s := range []Service{Fetch, Push} {
			if strings.HasSuffix(u.Path, "/"+string(s)) {
				return s, nil
			}
		}
	}
	return "", errors.New("this is no fetch, clone or push of git")
}

// Refused is a push that is not done.
type Refused struct {
	Why  string            // in one sentence
	Refs map[string]string // why, by ref; empty where the list could not be read
	// sideband and report are what the client can read.
	sideband, report bool
	order            []string
}

// Error says why.
func (r *Refused) Error() string { return r.Why }

// Commands reads the list of refs that a push would change from body, and judges all of them by the globs of what may be
// pushed. Where they may, what is returned is the whole body again, of which nothing but the list was read; else the error
// is a *Refused. It reads no more than the list.
func Commands(body io.Reader, globs []string) (io.Reader, error) {
	r := bufio.NewReaderSize(body, maxPacket)
	var list bytes.Buffer
	refused := &Refused{Refs: map[string]string{}}
	for n := 0; ; n++ {
		line, err := packet(r, &list)
		if err != nil {
			return nil, &Refused{Why: "the list of refs to push cannot be read: " + err.Error()}
		}
		if line == nil { // the end of the list
			break
		}
		if n >= maxCommands || list.Len() > maxList {
			return nil, &Refused{Why: fmt.Sprintf("more than %d refs are pushed at once", maxCommands)}
		}
		if err := refused.command(line, globs); err != nil {
			refused.Why = err.Error()
			return nil, refused
		}
	}
	for _, ref := range refused.order {
		if refused.Refs[ref] != "" {
			refused.Why = "refs may not be pushed that no rule names"
			return nil, refused
		}
	}
	return io.MultiReader(&list, r), nil
}

// packet reads one pkt-line into list and returns what it holds; nil for a flush.
func packet(r *bufio.Reader, list *bytes.Buffer) ([]byte, error) {
	head := make([]byte, headPacket)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, errors.New("it ends early")
	}
	list.Write(head)
	n, err := strconv.ParseUint(string(head), 16, 16)
	switch {
	case err != nil || strings.ContainsAny(string(head), "+-_"):
		return nil, errors.New("it has no length where one belongs")
	case n == 0:
		return nil, nil
	case n <= headPacket || n > maxPacket:
		return nil, errors.New("it has a length that no list has")
	}
	line := make([]byte, n-headPacket)
	if _, err := io.ReadFull(r, line); err != nil {
		return nil, errors.New("it ends early")
	}
	list.Write(line)
	return line, nil
}

// command judges one line of the list.
func (r *Refused) command(line []byte, globs []string) error {
	text, abilities, first := strings.Cut(string(line), "\x00")
	if first {
		if len(r.order) > 0 {
			return errors.New("the list of refs to push says twice what the client can do")
		}
		for ability := range strings.FieldsSeq(abilities) {
			switch ability {
			case "report-status", "report-status-v2":
				r.report = true
			case "side-band-64k":
				r.sideband = true
			case "push-options":
				return errors.New("options of a push are not judged, so that none is sent: leave --push-option out")
			}
		}
	}
	text = strings.TrimSuffix(text, "\n")
	if strings.HasPrefix(text, "shallow ") {
		return nil // where the client's own history ends
	}
	if strings.HasPrefix(text, "push-cert") {
		return errors.New("a signed push is not judged: leave --signed out")
	}
	from, rest, _ := strings.Cut(text, " ")
	to, ref, ok := strings.Cut(rest, " ")
	if !ok || !objectID(from) || !objectID(to) || len(from) != len(to) {
		return errors.New("the list of refs to push cannot be read: a line is no command")
	}
	if _, twice := r.Refs[ref]; twice {
		return errors.New("a ref is pushed twice")
	}
	r.order = append(r.order, ref)
	switch {
	case !validRef(ref):
		r.Refs[ref] = "this is no name of a ref"
	case !matches(globs, ref):
		r.Refs[ref] = "not allowed by the rule for this host"
	default:
		r.Refs[ref] = ""
	}
	return nil
}

func objectID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// validRef is what git check-ref-format demands of a full name, so that no other name is meant by it.
func validRef(ref string) bool {
	if !strings.HasPrefix(ref, "refs/") || strings.Contains(ref, "..") || strings.Contains(ref, "@{") || len(ref) > 1024 ||
		strings.HasSuffix(ref, ".") || strings.ContainsAny(ref, " ~^:?*[\\\x7f") || path.Clean(ref) != ref {
		return false
	}
	for part := range strings.SplitSeq(ref, "/") {
		if strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return !strings.ContainsFunc(ref, func(r rune) bool { return r < ' ' })
}

// matches reports whether a glob names ref: * stands for what is between two slashes, a last /** for all below.
func matches(globs []string, ref string) bool {
	for _, g := range globs {
		if prefix, all := strings.CutSuffix(g, "/**"); all {
			n := strings.Count(prefix, "/") + 1
			parts := strings.Split(ref, "/")
			if len(parts) > n {
				if ok, err := path.Match(prefix, strings.Join(parts[:n], "/")); ok && err == nil {
					return true
				}
			}
			continue
		}
		if ok, err := path.Match(g, ref); ok && err == nil {
			return true
		}
	}
	return false
}

// CheckGlob refuses a pattern of refs that cannot match any, or could match more than was meant.
func CheckGlob(g string) error {
	prefix, _ := strings.CutSuffix(g, "/**")
	if _, err := path.Match(prefix, "refs/heads/x"); err != nil || !strings.HasPrefix(g, "refs/") ||
		strings.Contains(prefix, "**") || path.Clean(prefix) != prefix {
		return fmt.Errorf("%.100q names no refs: write refs/heads/NAME, with * within a name and /** at the end", g)
	}
	return nil
}

// Answer is the refusal as git's own report, which the client shows beside each ref, and its Content-Type.
func (r *Refused) Answer() (contentType string, body []byte) {
	contentType = "application/x-git-receive-pack-result"
	var report bytes.Buffer
	write(&report, "unpack ok\n")
	for _, ref := range r.order {
		why := r.Refs[ref]
		if why == "" {
			why = "refused with the others"
		}
		write(&report, "ng "+visible(ref)+" "+why+"\n")
	}
	report.WriteString("0000")
	var b bytes.Buffer
	switch {
	case r.sideband:
		write(&b, "\x02glovebox: "+r.Why+"\n")
		if r.report && len(r.order) > 0 {
			write(&b, "\x01"+report.String())
		} else {
			write(&b, "\x03glovebox: "+r.Why+"\n")
		}
		b.WriteString("0000")
	case r.report && len(r.order) > 0:
		b = report
	default:
		write(&b, "ERR glovebox: "+r.Why+"\n")
	}
	return contentType, b.Bytes()
}

// visible is a ref without what a terminal obeys.
func visible(ref string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, ref)
}

// write writes pkt-lines: several, of one band, where the text is too long for one.
func write(b *bytes.Buffer, text string) {
	band := ""
	if text[0] < 4 {
		band, text = text[:1], text[1:]
	}
	for len(text) > 0 {
		n := min(len(text), maxPacket-headPacket-len(band)-1)
		fmt.Fprintf(b, "%04x%s%s", headPacket+len(band)+n, band, text[:n])
		text = text[n:]
	}
}
