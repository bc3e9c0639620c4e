package gateway

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"
)

func clientHello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() {
		_ = tls.Client(ours, config).Handshake()
		ours.Close()
	}()
	buf := make([]byte, 16<<10)
	_ = theirs.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, err := io.ReadAtLeast(theirs, buf, 5)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

func TestReadHello(t *testing.T) {
	text := clientHello(t, &tls.Config{ServerName: "Good.test"})
	more := append(bytes.Clone(text), "what comes behind it"...)
	for name, r := range map[string]io.Reader{
		"at once": bytes.NewReader(more), "byte by byte": iotest.OneByteReader(bytes.NewReader(more)),
		"halves": iotest.HalfReader(bytes.NewReader(more)), "the end with it": iotest.DataErrReader(bytes.NewReader(text)),
	} {
		h, read, err := readHello(t.Context(), r)
		if err != nil || h.name != "Good.test" || h.ech {
			t.Errorf("%s: %+v %v", name, h, err)
		}
		if !bytes.HasPrefix(more, read) || len(read) < len(text) {
			t.Errorf("%s: %d bytes were read, of %d", name, len(read), len(text))
		}
	}
	for i := range len(text) - 1 {
		if h, _, err := readHello(t.Context(), bytes.NewReader(text[:i])); err == nil {
			t.Fatalf("%d bytes were a hello: %+v", i, h)
		}
	}
}

// doubleName puts a second name into the list of server names.
func TestTwoNames(t *testing.T) {
	text := clientHello(t, &tls.Config{ServerName: "good.test", NextProtos: []string{"h2"}})
	name := []byte("\x00\x00\x09good.test")
	at := bytes.Index(text, name)
	if at < 0 {
		t.Fatal("no name")
	}
	double := append(bytes.Clone(text[:at+len(name)]), append([]byte("\x00\x00\x09evil.test"), text[at+len(name):]...)...)
	grow := func(i, size int) { // a length of so many bytes at i
		n := 0
		for _, b := range double[i : i+size] {
			n = n<<8 | int(b)
		}
		for n, j := n+12, i+size-1; j >= i; j-- {
			double[j], n = byte(n), n>>8
		}
	}
	grow(3, 2)    // of the record
	grow(6, 3)    // of the message
	grow(at-2, 2) // of the list of names
	grow(at-4, 2) // of the extension
	// Of all extensions: behind random, session, suites and compression.
	i := 5 + 4 + 2 + 32
	i += 1 + int(double[i])
	i += 2 + int(double[i])<<8 + int(double[i+1])
	i += 1 + int(double[i])
	grow(i, 2)
	if h, _, err := readHello(t.Context(), bytes.NewReader(double)); err == nil {
		t.Errorf("two names were one: %+v", h)
	}
}

func FuzzReadHello(f *testing.F) {
	text := clientHello(f, &tls.Config{ServerName: "good.test", NextProtos: []string{"h2", "http/1.1"}})
	f.Add(text)
	f.Add(clientHello(f, &tls.Config{ServerName: "good.test", MaxVersion: tls.VersionTLS12}))
	f.Add([]byte{22, 3, 1, 0, 4, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		h, read, err := readHello(t.Context(), iotest.HalfReader(bytes.NewReader(data)))
		if len(read) > maxHello || !bytes.HasPrefix(data, read) {
			t.Fatalf("%d bytes were read of %d", len(read), len(data))
		}
		if err != nil {
			return
		}
		// Whoever reads it next reads the same.
		again, _, err := readHello(t.Context(), bytes.NewReader(read))
		if err != nil || again != h {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
	})
}
