package output

import (
	"regexp"
	"strings"
	"sync"
)

// flags is a set of what was found in output.
type flags uint8

// Ordered as their names sort.
const (
	flagANSI flags = 1 << iota
	flagBidi
	flagBinary
	flagExfil
	flagInstruction
	flagInvalid
	flagInvisible
)

// names lists f as JSON spells it, sorted, never nil.
func (f flags) names() []string {
	all := [...]string{"ansi", "bidi", "binary", "exfil_link", "instruction_like", "invalid_utf8", "invisible"}
	list := make([]string, 0, len(all))
	for i, name := range all {
		if f&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	return list
}

// pattern is one thing to look for. The expression costs far more a byte than a search for words, so it is tried only on
// text that holds one of its words, in lower case.
type pattern struct {
	flag  flags
	words []string
	match func() *regexp.Regexp // safe for concurrent use
}

// lazily compiles an expression when it is first needed: most runs of the command line never need it.
func lazily(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// The engine of package regexp takes time linear in the text, whatever the text.
var patterns = []pattern{
	// Orders to drop what the model was told, in some of the languages they come in.
	{flagInstruction, []string{"ignore", "disregard", "forget", "override"},
		lazily(`(?i)\b(?:ignore|disregard|forget|override)\s+(?:(?:all|any|the|your|of|my|these|those)\s+)*` +
			`(?:previous|prior|above|earlier|preceding|system|original)\s+` +
			`(?:instruction|prompt|message|rule|direction|command|guideline)`)},
	{flagInstruction, []string{"instruc", "instruç", "istruzioni", "anweisung"},
		lazily(`(?i)\bnew\s+(?:system\s+)?instructions?\s*:` +
			`|\bignor\w*\s+(?:\pL+\s+){0,2}(?:instrucciones|instructions|istruzioni|instruções|anweisungen)`)},
	{flagInstruction, []string{"игнорируй"},
		lazily(`(?i)игнорируй(?:те)?\s+(?:\pL+\s+){0,2}(?:инструкци|указани)`)},
	{flagInstruction, []string{"忽略", "無視"},
		lazily(`忽略.{0,8}(?:指令|指示|说明|提示)|指示.{0,8}無視`)},
	{flagInstruction, []string{"now"}, lazily(`(?i)\byou\s+(?:are|must)\s+now\s`)},
	{flagInstruction, []string{"user"}, lazily(`(?i)\bdo\s+not\s+(?:tell|inform|alert|warn)\s+the\s+user`)},
	// Roles at the start of a line. Capitals only where the word is common in honest reports.
	{flagInstruction, []string{"system", "developer", "assistant", "tool"},
		lazily(`(?m)^[\s>#*\[]*(?:SYSTEM|DEVELOPER|ASSISTANT|TOOL)(?:\s+[A-Z]+)?[\]*]*\s*:`)},
	{flagInstruction, []string{"assistant", "human"}, lazily(`(?m)^[\s>#*]*(?:Assistant|Human)\s*:`)},
	// Markers of chat formats and tool protocols.
	{flagInstruction, []string{"<|", "inst]", "sys>>"}, lazily(`<\|\w{2,32}\|>|\[/?INST\]|<</?SYS>>`)},
	{flagInstruction, []string{"tool_", "function_", "invoke", "system", "assistant", "instruction"},
		lazily(`(?i)</?(?:\w+:)?(?:tool_results?|tool_use|tool_calls?|function_calls?|function_results?|invoke|` +
			`system|system[-_]\w+|assistant|instructions?)(?:\s[^<>\n]*)?>`)},
	// Markup that fetches, or that carries data away when followed. An image is fetched without being asked.
	{flagExfil, []string{"]("}, lazily(`(?i)!\[[^\]\n]*\]\(\s*<?(?:https?:)?//` +
		`|\]\(\s*<?(?:https?:)?//[^\s)]*\?[^\s)]|\]\(\s*<?(?:javascript|data|vbscript):`)},
	{flagExfil, []string{"]:"}, lazily(`(?im)^ {0,3}\[[^\]\n]+\]:\s*<?(?:https?:)?//[^\s>]*\?[^\s>]`)},
	{flagExfil, []string{"<script"}, lazily(`(?i)<script\b`)},
	{flagExfil, []string{"<im", "<svg", "<iframe", "<object", "<embed", "<link", "<video", "<audio", "<source", "<use",
		"<base", "<form", "<input", "<body"},
		lazily(`(?i)<(?:img|image|svg|iframe|object|embed|link|video|audio|source|use|base|form|input|body)\b` +
			`[^<>]*\b(?:src|srcset|href|data|action|background|poster|on\w+)\s*=`)},
	{flagExfil, []string{"url(", "@import"},
		lazily(`(?i)\burl\(\s*["']?(?:https?:)?//|@import\s+["']?(?:https?:)?//`)},
}

// suspect looks for wording and markup in text that has been made inert.
func suspect(text string) flags {
	var found flags
	lower := strings.ToLower(text)
	for _, p := range patterns {
		if found&p.flag != 0 {
			continue
		}
		for _, word := range p.words {
			if strings.Contains(lower, word) {
				if p.match().MatchString(text) {
					found |= p.flag
				}
				break
			}
		}
	}
	return found
}
