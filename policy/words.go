package policy

import (
	"strconv"
	"strings"

	"glovebox"
	"glovebox/internal/spelling"
)

// meant is the fix for an unknown word: the nearest one, else all of them. A flag, if any, is put before the word.
func meant(flag, word string, known []string) string {
	if flag != "" {
		flag += " "
	}
	if n := spelling.Nearest(word, known); n != "" {
		return "did you mean " + flag + n + "?"
	}
	return "say " + flag + list(known)
}

// unknownWord refuses a word that is none of the known ones of a flag.
func unknownWord(flag, word string, known []string) *glovebox.Decision {
	return invalid(meant("--"+flag, word, known), "%s %s is not known; it is one of %s", flag, quote(word), list(known))
}

// list joins words as people do: a, b or c.
func list(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// quote shows text of a caller in a message: bounded, printable ASCII.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "…"
	}
	return strconv.QuoteToASCII(s)
}
