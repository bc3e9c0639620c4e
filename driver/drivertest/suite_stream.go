package drivertest

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strings"
	"time"
)

// streamCases are about standard input and output.
var streamCases = map[string]func(*bench){
	"stdout and stderr are apart and complete": caseStreams,
	"no stdin is an empty stdin":               caseStdinNone,
	"stdin is streamed to its end":             caseStdinLong,
	"a stdin that nobody reads delays nothing": caseStdinUnread,
	"a stdin that never comes delays nothing":  caseStdinBlocked,
}

const (
	scriptStreams = "echo out; echo err >&2; echo out2"
	scriptCount   = "exec wc -c"
	scriptExit5   = "exit 5"
)

func caseStreams(b *bench) {
	r, e, _ := b.run(shell(scriptStreams))
	b.wantExit(r, e, 0)
	if out, err := r.out.String(), r.err.String(); out != "out\nout2\n" || err != "err\n" {
		b.Errorf("stdout = %q, stderr = %q", out, err)
	}
}

func caseStdinNone(b *bench) {
	r, e, _ := b.run(shell(scriptCount))
	b.wantExit(r, e, 0)
	if got := strings.TrimSpace(r.out.String()); got != "0" {
		b.Errorf("bytes on stdin = %q, want 0", got)
	}
}

func caseStdinLong(b *bench) {
	text := strings.Repeat("0123456789abcdef", 1<<16)
	cmd := shell(scriptCat)
	cmd.Stdin = io.MultiReader(strings.NewReader(text[:100]), strings.NewReader(text[100:]))
	r, e, _ := b.run(cmd)
	b.wantExit(r, e, 0)
	if got := r.out.String(); got != text {
		b.Errorf("copied %d bytes %s, want %d bytes %s", len(got), digest(got), len(text), digest(text))
	}
}

func caseStdinUnread(b *bench) {
	cmd := shell(scriptExit5)
	cmd.Stdin = io.LimitReader(zeros{}, 64<<20)
	b.stdinIgnored(cmd.Stdin)
}

func caseStdinBlocked(b *bench) {
	read, write := io.Pipe()
	b.Cleanup(func() { write.Close() })
	b.stdinIgnored(read)
}

// stdinIgnored runs a program that ends without reading from stdin and wants a prompt end and close.
func (b *bench) stdinIgnored(stdin io.Reader) {
	b.Helper()
	box, cmd, begun := b.start(), shell(scriptExit5), time.Now()
	cmd.Stdin = stdin
	r := b.exec(box, cmd)
	b.wantExit(r, b.exit(r), 5)
	if err := box.Close(b.context()); err != nil {
		b.Fatalf("close: %v", err)
	}
	if took := time.Since(begun); took > b.slack {
		b.Errorf("took %v", took)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}
