// Package output handles what comes out of a sandbox: bytes on two streams and files in /outputs. It bounds, counts, hashes
// and keeps them, and makes text of them that is safe to show. Everything here is linear in what it reads and bounded in
// what it holds, whatever the bytes are; nothing is parsed, normalised or acted on.
//
// # Text
//
// [Text] and [Terminal] share one set of rules. The result is valid UTF-8 in which only printable characters, tabs and line
// feeds are left:
//
//   - Control sequences (ESC, CSI, OSC, DCS, APC, PM and SOS, in their seven-bit form and as C1 characters) are removed with
//     their payload. A payload that nothing ends goes up to the end of its line, so that no sequence hides more than the
//     line it is on.
//   - CR LF becomes LF. Any other C0 control and DEL are spelt \x07; a lone carriage return is \x0d and NUL is \x00.
//   - Other C1 controls, bidirectional controls, tag characters and invisible characters are spelt <U+202E>. Joiners and
//     variation selectors stay where writing needs them: inside emoji and after letters of scripts that join.
//   - A byte that is not UTF-8 becomes U+FFFD, and what follows it stays: a stray byte begins no control sequence.
//   - The characters U+2058, U+2059, U+205B and U+205C are spelt <U+2058> and so on. Glovebox's own mark for bytes that were
//     left out begins and ends with U+2058 (⁘), therefore no program can print it.
//
// A character grows to at most four times its bytes.
//
// # Flags
//
// Flags warn a reader; nothing is decided by them. ansi: a control sequence. bidi: a bidirectional control. invisible: a
// character that shows nothing. invalid_utf8: bytes that are no text. binary: a NUL, or more than three in ten bytes are
// control characters or no text. instruction_like: wording that addresses a model, or markers of roles and tool calls.
// exfil_link: markup that a renderer may fetch from elsewhere. The last two are heuristics over a short list of patterns:
// their absence proves nothing.
package output
