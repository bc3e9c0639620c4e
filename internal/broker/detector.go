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
	var t track
	d.search(&t, []byte(form), make([]byte, window+len(form)))
	d.owner[t.tail] = owner
	slot := slotOf(t.last)
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
func (d *Detector) Scan() *Scan { return &Scan{detector: d, same: true, found: -1} }

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
	plain    track
	once     view
	twice    view
	same     bool   // the views end as the stream does
	folded   []byte // room to work in
	found    int
}

// view is a stream with its escapes resolved.
type view struct {
	unescape unescaper
	track    track
	text     []byte // room to work in
}

// block is how much is looked at together.
const block = 1 << 10

// Found is the index of the placeholder that was found first, or -1.
func (s *Scan) Found() int { return s.found }

// Find tells whether a placeholder was found, in p or before.
func (s *Scan) Find(p []byte) bool {
	if len(s.detector.owner) == 0 {
		return false
	}
	for len(p) > 0 && s.found < 0 {
		n := min(len(p), block)
		s.look(p[:n])
		p = p[n:]
	}
	return s.found >= 0
}

// look looks at a block: as it is, with its escapes resolved, and with those of that resolved.
func (s *Scan) look(p []byte) {
	if need := window + len(p) + 2*len(s.once.unescape.hold); len(s.folded) < need {
		s.folded = make([]byte, need)
	}
	s.search(&s.plain, p)
	if s.same && !escaped(p) {
		s.once.track, s.twice.track = s.plain, s.plain
		return
	}
	s.once.text = s.once.unescape.resolve(p, s.once.text[:0])
	s.search(&s.once.track, s.once.text)
	s.twice.text = s.twice.unescape.resolve(s.once.text, s.twice.text[:0])
	s.search(&s.twice.track, s.twice.text)
	s.same = s.once.unescape.held+s.twice.unescape.held == 0 && s.plain == s.once.track && s.plain == s.twice.track
}

func (s *Scan) search(t *track, p []byte) {
	if owner := s.detector.search(t, p, s.folded); owner >= 0 && s.found < 0 {
		s.found = owner
	}
}

// escaped tells whether an escape begins in p.
func escaped(p []byte) bool {
	for i := range len(escapes) {
		if bytes.IndexByte(p, escapes[i]) >= 0 {
			return true
		}
	}
	return false
}

// track is where a search in a stream stands: the last bytes as they are compared, and the last eight of them as a number.
type track struct {
	tail [window]byte
	last uint64
}

// slotOf is the bit of a Detector's bloom for the last eight bytes of a form.
func slotOf(last uint64) uint64 { return last * 0x9e3779b97f4a7c15 >> (64 - 16) }

// search goes on in a stream and returns the index of a placeholder, or -1. buf has room for window and p.
func (d *Detector) search(t *track, p, buf []byte) int {
	n, last, found := copy(buf, t.tail[:]), t.last, -1
	for _, c := range p {
		if c = folded[c]; c == 0 {
			continue
		}
		buf[n] = c
		n++
		last = last<<8 | uint64(c)
		if slot := slotOf(last); d.bloom[slot/64]>>(slot%64)&1 != 0 {
			if owner, ok := d.owner[[window]byte(buf[n-window:n])]; ok && found < 0 {
				found = owner
			}
		}
	}
	copy(t.tail[:], buf[n-window:n])
	t.last = last
	return found
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
