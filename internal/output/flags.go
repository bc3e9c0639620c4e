package output

import "regexp"

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

// names lists f as the contract spells it, sorted, never nil.
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

// Wording that addresses the model which reads the output, and the markers that frame conversations and tool calls. The
// engine of package regexp takes time linear in the text, whatever the text.
var instructionLike = regexp.MustCompile(`(?m)` +
	// Orders to drop what the model was told, in some of the languages they come in.
	`(?i:\b(?:ignore|disregard|forget|override)\s+(?:(?:all|any|the|your|of|my|these|those)\s+)*` +
	`(?:previous|prior|above|earlier|preceding|system|original)\s+` +
	`(?:instruction|prompt|message|rule|direction|command|guideline))` +
	`|(?i:\bnew\s+(?:system\s+)?instructions?\s*:)` +
	`|(?i:\byou\s+(?:are\s+now|must\s+now)\s)` +
	`|(?i:\bdo\s+not\s+(?:tell|inform|alert|warn)\s+the\s+user)` +
	`|(?i:\bignor\w*\s+(?:\pL+\s+){0,2}(?:instrucciones|instructions|istruzioni|instru\pL+es|anweisungen)\b)` +
	`|(?i:игнорируй(?:те)?\s+(?:\pL+\s+){0,2}(?:инструкци|указани))` +
	`|忽略.{0,8}(?:指令|指示|说明|提示)|指示.{0,4}無視` +
	// Roles at the start of a line. Capitals only where the word is common in honest reports.
	`|^[\s>#*\[]*(?:SYSTEM|DEVELOPER|ASSISTANT|TOOL)(?:\s+[A-Z]+)?[\]*]*\s*:` +
	`|^[\s>#*]*(?:Assistant|Human)\s*:` +
	// Markers of chat formats and tool protocols.
	`|<\|\w{2,32}\|>|\[/?INST\]|<</?SYS>>` +
	`|(?i:</?(?:\w+:)?(?:tool_results?|tool_use|tool_calls?|function_calls?|function_results?|invoke|system|` +
	`system[-_]\w+|assistant|instructions?)(?:\s[^<>\n]*)?>)`)

// Markup that fetches, or that carries data away when followed.
var exfilLink = regexp.MustCompile(`(?im)` +
	`!\[[^\]\n]*\]\(\s*<?(?:https?:)?//` + // an image is fetched without being asked
	`|\]\(\s*<?(?:https?:)?//[^\s)]*\?[^\s)]` +
	`|^\s{0,3}\[[^\]\n]+\]:\s*<?(?:https?:)?//[^\s>]*\?[^\s>]` +
	`|\]\(\s*<?(?:javascript|data|vbscript):` +
	`|<(?:img|image|svg|script|iframe|object|embed|link|video|audio|source|use|base|form|input|body)` +
	`\b[^<>]*\b(?:src|srcset|href|data|action|background|poster|on\w+)\s*=` +
	`|<script\b` +
	`|\burl\(\s*["']?(?:https?:)?//|@import\s+["']?(?:https?:)?//`)

// suspect looks for wording and markup in text that has been made inert.
func suspect(text string) flags {
	var f flags
	if instructionLike.MatchString(text) {
		f |= flagInstruction
	}
	if exfilLink.MatchString(text) {
		f |= flagExfil
	}
	return f
}
