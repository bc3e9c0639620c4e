package output

import "unicode"

// class says what a character above the C1 controls does to a reader.
type class uint8

const (
	visible       class = iota
	joining             // invisible, but writing needs it in its place
	invisible           // shows nothing and has no business in output
	bidirectional       // reorders what is around it
	reserved            // looks like Glovebox's own mark
)

// mark begins and ends the line that Glovebox puts where bytes were left out. Its look-alikes are reserved with it.
const mark = '\u2058'

// classify is called for each character that is not ASCII, so the common ranges leave early.
func classify(r rune) class {
	switch {
	case r < 0x2000:
		return classifyLow(r)
	case r < 0x2070:
		return classifyPunctuation(r)
	case r >= 0xe0100 && r <= 0xe01ef, r >= 0xfe00 && r <= 0xfe0f:
		return joining
	case r >= 0xe0000 && r <= 0xe0fff, // tags, and what Unicode sets aside to be ignored
		r == 0x3164, r == 0xfeff, r == 0xffa0, r >= 0xfff0 && r <= 0xfffb,
		r >= 0x1bca0 && r <= 0x1bca3, r >= 0x1d173 && r <= 0x1d17a:
		return invisible
	}
	return visible
}

func classifyLow(r rune) class {
	switch {
	case r < 0xad:
	case r == 0xad, r == 0x34f, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r == 0x180e:
		return invisible
	case r == 0x61c:
		return bidirectional
	case r >= 0x180b && r <= 0x180f:
		return joining
	}
	return visible
}

func classifyPunctuation(r rune) class {
	switch {
	case r == 0x200c, r == 0x200d:
		return joining
	case r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return bidirectional
	case r == 0x200b, r >= 0x2060, r == 0x2028, r == 0x2029: // the last two end a line for some readers and not for others
		return invisible
	case r == mark, r == 0x2059, r == 0x205b, r == 0x205c:
		return reserved
	}
	return visible
}

// joins reports whether the joiner or variation selector r belongs after prev. One at a time: prev is never a joiner that
// another one may follow, so that no run of them carries a message.
func joins(prev, r rune) bool {
	switch {
	case r == 0x200c || r == 0x200d:
		return emoji(prev) || prev == 0xfe0f || prev >= 0x64b && prev <= 0x65f || unicode.In(prev,
			unicode.Arabic, unicode.Syriac, unicode.Mongolian, unicode.Nko, unicode.Devanagari, unicode.Bengali,
			unicode.Gurmukhi, unicode.Gujarati, unicode.Oriya, unicode.Tamil, unicode.Telugu, unicode.Kannada,
			unicode.Malayalam, unicode.Sinhala, unicode.Khmer, unicode.Myanmar, unicode.Tibetan, unicode.Balinese,
			unicode.Javanese, unicode.Thaana)
	case r >= 0x180b && r <= 0x180f:
		return unicode.Is(unicode.Mongolian, prev) && classify(prev) == visible
	case r >= 0xe0100:
		return unicode.Is(unicode.Han, prev)
	case prev >= '0' && prev <= '9' || prev == '#' || prev == '*':
		return r >= 0xfe0e // keycaps
	}
	return prev >= 0xa0 && prev != 0xfffd && classify(prev) == visible &&
		(emoji(prev) || unicode.IsSymbol(prev) || unicode.IsPunct(prev) ||
			unicode.In(prev, unicode.Han, unicode.Myanmar, unicode.Phags_Pa))
}

// emoji is generous: any pictograph, assigned or not, counts.
func emoji(r rune) bool {
	return r >= 0x1f000 && r <= 0x1faff || unicode.Is(unicode.So, r) && r != 0xfffd
}
