package broker

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"unicode/utf16"
)

// window is how much of a form of a placeholder is looked for: 24 characters of its random part, which nothing has by
// chance.
const window = 24

// Detector finds placeholders in whatever form: as they are, in another case, in UTF-16, in hexadecimal, in base64 wherever
// it began, broken into lines, behind percent, JSON, HTML and quoted-printable escapes, twice over too. What a program
// encrypts or compresses is not found; a placeholder is worth nothing, and to find one tells of a mistake or an attempt. It
// does not change and is safe for concurrent use.
type Detector struct {
	owner map[[window]byte]int // form → index of the placeholder
	bloom [1 << 10]uint64
}

// NewDetector makes a Detector of placeholders.
func NewDetector(placeholders []string) *Detector {
	d := &Detector{owner: map[[window]byte]int{}}
	for i, p := range placeholders {
		for _, form := range forms(p) {
			d.add(form, i)
		}
	}
	return d
}

// add looks for the last of a form, which is random.
func (d *Detector) add(form string, owner int) {
	var m matcher
	for _, c := range []byte(form) {
		m.push(c)
	}
	if m.kept < window {
		return // forms are longer: see forms
	}
	d.owner[m.tail()] = owner
	slot := m.hash >> (64 - 16)
	d.bloom[slot/64] |= 1 << (slot % 64)
}

// forms are what a placeholder may look like, without what depends on what stands before or behind it.
func forms(p string) []string {
	raw := []byte(p)
	wide := utf16.Encode([]rune(p))
	little, big := make([]byte, 0, 2*len(wide)), make([]byte, 0, 2*len(wide))
	for _, u := range wide {
		little, big = append(little, byte(u), byte(u>>8)), append(big, byte(u>>8), byte(u))
	}
	all := []string{p, hex.EncodeToString(raw), hex.EncodeToString(little)}
	for _, b := range [][]byte{raw, little, big} {
		for before := range 3 {
			// What stands before shifts the groups; what the first and the last share with their neighbours is left out.
			text := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), b...))
			all = append(all, text[(8*before+5)/6:8*(before+len(b))/6])
		}
	}
	return all
}

// Scan begins to look through one stream.
func (d *Detector) Scan() *Scan { return &Scan{detector: d, found: -1} }

// In is the index of a placeholder that any of texts has, or -1.
func (d *Detector) In(texts ...string) int {
	for _, t := range texts {
		s := d.Scan()
		if s.Find([]byte(t)) {
			return s.Found()
		}
	}
	return -1
}

// Scan looks through one stream, in however small pieces it comes, in time linear to its length. It is used by one goroutine
// at a time.
type Scan struct {
	detector *Detector
	plain    matcher
	once     view
	twice    view
	found    int
}

// view is a stream with its escapes resolved.
type view struct {
	unescape unescaper
	matcher  matcher
}

// Found is the index of the placeholder that was found first, or -1.
func (s *Scan) Found() int { return s.found }

// Find tells whether a placeholder was found, in p or before.
func (s *Scan) Find(p []byte) bool {
	if s.found >= 0 {
		return true
	}
	if len(s.detector.owner) == 0 {
		return false
	}
	for len(p) > 0 && s.found < 0 {
		next := bytes.IndexAny(p, escapes)
		if next < 0 {
			next = len(p)
		}
		if next >= window && s.alike() {
			// No escape is under way: all views end alike, and what follows is the same in all.
			for _, c := range p[:next] {
				s.look(&s.plain, c)
			}
			s.once.matcher, s.twice.matcher = s.plain, s.plain
			p = p[next:]
			continue
		}
		n := min(len(p), next+2*window) // past the escape, until the views may be alike again
		for _, c := range p[:n] {
			s.step(c)
		}
		p = p[n:]
	}
	return s.found >= 0
}

// alike tells whether all views have seen the same last.
func (s *Scan) alike() bool {
	if s.once.unescape.held > 0 || s.twice.unescape.held > 0 {
		return false
	}
	t := s.plain.tail()
	return s.plain.kept >= window && s.once.matcher.kept >= window && s.twice.matcher.kept >= window &&
		t == s.once.matcher.tail() && t == s.twice.matcher.tail()
}

func (s *Scan) step(c byte) {
	s.look(&s.plain, c)
	s.once.unescape.push(c, func(c byte) {
		s.look(&s.once.matcher, c)
		s.twice.unescape.push(c, func(c byte) { s.look(&s.twice.matcher, c) })
	})
}

func (s *Scan) look(m *matcher, c byte) {
	if !m.push(c) || m.kept < window {
		return
	}
	slot := m.hash >> (64 - 16)
	if s.detector.bloom[slot/64]&(1<<(slot%64)) == 0 {
		return
	}
	if owner, ok := s.detector.owner[m.tail()]; ok && s.found < 0 {
		s.found = owner
	}
}

// matcher has the last bytes of a stream, in one case, without white space and zeros, and a hash of them.
type matcher struct {
	ring [window]byte
	at   int
	kept int // how many it has; no more than window are counted
	hash uint64
}

// factor is of a multiplicative generator; last is its power of window, by which a byte leaves.
const factor = 0x9e3779b97f4a7c15

var last = power(factor, window)

func power(b uint64, n int) uint64 {
	p := uint64(1)
	for range n {
		p *= b
	}
	return p
}

// push takes in a byte, unless it is one of those that are skipped.
func (m *matcher) push(c byte) bool {
	if c = folded[c]; c == 0 {
		return false
	}
	m.hash = m.hash*factor + uint64(c) - uint64(m.ring[m.at])*last
	m.ring[m.at] = c
	if m.at++; m.at == window {
		m.at = 0
	}
	if m.kept < window {
		m.kept++
	}
	return true
}

func (m *matcher) tail() (t [window]byte) {
	n := copy(t[:], m.ring[m.at:])
	copy(t[n:], m.ring[:m.at])
	return t
}

// folded is a byte as it is compared: in lower case, the two alphabets of base64 alike; 0 where it is skipped, which makes
// UTF-16 and UTF-32 plain.
var folded = func() (t [256]byte) {
	for i := range t {
		switch c := byte(i); {
		case c >= 'A' && c <= 'Z':
			t[i] = c + 'a' - 'A'
		case c == '-':
			t[i] = '+'
		case c == '_':
			t[i] = '/'
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			t[i] = 0
		default:
			t[i] = c
		}
	}
	return t
}()
