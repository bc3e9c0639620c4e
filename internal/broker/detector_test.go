package broker

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"unicode/utf16"
)

func placeholder(t testing.TB, shape string) string {
	t.Helper()
	p, err := NewPlaceholder(shape)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wide(s string, big bool) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		if big {
			b = append(b, byte(u>>8), byte(u))
		} else {
			b = append(b, byte(u), byte(u>>8))
		}
	}
	return string(b)
}

func percentAll(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

// disguises are what a program may make of a placeholder.
func disguises(p string) map[string]string {
	escaped, lines := "", ""
	for i, c := range p {
		escaped += fmt.Sprintf(`\u%04x`, c)
		if lines += string(c); i%7 == 6 {
			lines += "\r\n"
		}
	}
	all := map[string]string{
		"plain": p, "upper": strings.ToUpper(p), "lower": strings.ToLower(p), "lines": lines,
		"quoted": fmt.Sprintf("%q", p), "percent": percentAll(p), "percent twice": percentAll(percentAll(p)),
		"query": url.QueryEscape(p), "json": `{"a":"` + escaped + `"}`, "json of percent": strings.ReplaceAll(percentAll(p), "%", `\u0025`),
		"hex": hex.EncodeToString([]byte(p)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(p))),
		"utf16le": wide(p, false), "utf16be": wide(p, true), "html": "", "printable": "", `slash`: `\` + strings.Join(strings.Split(p, ""), `\`),
	}
	for _, c := range []byte(p) {
		all["html"] += fmt.Sprintf("&#x%x;", c)
		all["printable"] += fmt.Sprintf("=%02X", c)
	}
	delete(all, "slash") // \u and \x are escapes of their own
	for before := range 4 {
		for name, e := range map[string]*base64.Encoding{"base64": base64.StdEncoding, "base64url": base64.RawURLEncoding} {
			text := e.EncodeToString([]byte(strings.Repeat("u", before) + p + ":x"))
			all[fmt.Sprint(name, before)] = text
			all[fmt.Sprint(name, before, " percent")] = percentAll(text)
			all[fmt.Sprint(name, before, " wide")] = e.EncodeToString([]byte(strings.Repeat("u", before) + wide(p, false)))
			all[fmt.Sprint(name, before, " big")] = e.EncodeToString([]byte(strings.Repeat("u", before) + wide(p, true)))
		}
	}
	return all
}

func TestDetectorFinds(t *testing.T) {
	for _, shape := range []string{"", "openai", "github", "aws", "xoxb-…"} {
		other, p := placeholder(t, shape), placeholder(t, shape)
		d := NewDetector([]string{other, p})
		for name, text := range disguises(p) {
			for _, around := range []string{"", "%", `\`, "&#", "=", "=\r", "%4", `\u00`, strings.Repeat("=&%", 40), strings.Repeat("a", 300)} {
				whole := []byte(around + text + around)
				for _, piece := range []int{1, 2, 3, 7, 64, len(whole)} {
					s := d.Scan()
					for rest := whole; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
						s.Find(rest[:min(piece, len(rest))])
					}
					if s.Found() != 1 {
						t.Fatalf("%s, shape %q, behind %.10q, in pieces of %d: found %d", name, shape, around, piece, s.Found())
					}
				}
			}
		}
	}
}

func TestDetectorFindsNothing(t *testing.T) {
	mine, p := placeholder(t, ""), placeholder(t, "")
	d := NewDetector([]string{mine})
	for name, text := range disguises(p) {
		if d.In(text) >= 0 {
			t.Errorf("%s of another placeholder was found", name)
		}
	}
	half := mine[:len(mine)/2]
	if d.In("", "gbx_", half, strings.Repeat("gbx_", 1000), strings.Repeat(half, 50)) >= 0 {
		t.Error("part of a placeholder was found")
	}
	if NewDetector(nil).In(mine) >= 0 {
		t.Error("a detector of nothing found something")
	}
}

// Two streams do not meet, and what was found stays found.
func TestScanIsOneStream(t *testing.T) {
	p := placeholder(t, "")
	d := NewDetector([]string{p})
	a, b := d.Scan(), d.Scan()
	if a.Find([]byte(p[:30])) || b.Find([]byte(p[30:])) {
		t.Error("two halves in two streams were taken for one")
	}
	if !a.Find([]byte(p[30:])) || !a.Find(nil) || !a.Find([]byte("other")) {
		t.Error("what was found was forgotten")
	}
}

func FuzzDetector(f *testing.F) {
	p := placeholder(f, "")
	d := NewDetector([]string{p})
	f.Add([]byte(`a\u00`), []byte("%4"), uint8(3))
	f.Add([]byte("&#x4;"), []byte("=\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, before, after []byte, piece uint8) {
		whole := slicesConcat(before, []byte(p), after)
		s := d.Scan()
		for rest := whole; len(rest) > 0; {
			n := min(len(rest), int(piece)+1)
			s.Find(rest[:n])
			rest = rest[n:]
		}
		if s.Found() != 0 {
			t.Fatalf("not found behind %q", before)
		}
		if whole := bytes.ReplaceAll(slicesConcat(before, after), []byte(p), nil); d.In(string(whole)) >= 0 && !bytes.Contains(before, []byte(p[8:])) {
			t.Fatalf("found in %q", whole)
		}
	})
}

func slicesConcat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestPlaceholders(t *testing.T) {
	for shape, want := range map[string]string{"": "gbx_", "openai": "sk-", "github": "ghp_", "aws": "AKIA", "xoxb-…": "xoxb-", "a_...": "a_"} {
		p, q := placeholder(t, shape), placeholder(t, shape)
		if !strings.HasPrefix(p, want) || p == q || len(p) < len(want)+28 {
			t.Errorf("shape %q: %s, %s", shape, p, q)
		}
		if url.QueryEscape(p) != p {
			t.Errorf("%s needs escapes", p)
		}
	}
	for _, shape := range []string{"sk-", "…", "a b…", strings.Repeat("a", 33) + "…"} {
		if _, err := NewPlaceholder(shape); err == nil {
			t.Errorf("shape %q passed", shape)
		}
	}
}

// A value is seen nowhere, however it is printed.
func TestSecretIsAMark(t *testing.T) {
	s := NewSecret("canary-value")
	type holder struct{ S Secret }
	b, err := json.Marshal(holder{s})
	if err != nil {
		t.Fatal(err)
	}
	seen := string(b)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		seen += fmt.Sprintf(verb, s) + fmt.Sprintf(verb, holder{s}) + fmt.Sprintf(verb, []Secret{s}) + fmt.Sprintf(verb, &holder{s})
	}
	if strings.Contains(seen, "canary") || strings.Contains(seen, hex.EncodeToString([]byte("canary"))) {
		t.Errorf("the value is seen: %s", seen)
	}
}

func BenchmarkDetector(b *testing.B) {
	p := placeholder(b, "")
	d := NewDetector([]string{p, placeholder(b, "github")})
	binary := make([]byte, 64<<10)
	for i := range binary {
		binary[i] = byte(i * 7)
	}
	for name, text := range map[string][]byte{"text": bytes.Repeat([]byte("The quick brown fox. "), 3000), "binary": binary,
		"json": bytes.Repeat([]byte(`{"a":"b\n","c":12345},`), 3000), "escapes": bytes.Repeat([]byte("%25"), 20000)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			s := d.Scan()
			for b.Loop() {
				if s.Find(text) {
					b.Fatal("found")
				}
			}
		})
	}
}
