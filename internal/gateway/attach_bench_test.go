package gateway

import (
	"os"
	"testing"
)

// BenchmarkAttach is with the authorities of this machine: they are most of what a sandbox is shown.
func BenchmarkAttach(b *testing.B) {
	pem, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		b.Skip(err)
	}
	g, err := New(Config{Dialer: nobody{}, Roots: pem})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		a, err := g.Attach(b.Context(), Terms{})
		if err != nil {
			b.Fatal(err)
		}
		if err := a.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
