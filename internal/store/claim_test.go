package store

import "testing"

// TestClaims: a name is claimed as long as any Store that claims it is open.
func TestClaims(t *testing.T) {
	dir := t.TempDir()
	one, two, other := mustOpen(t, dir), mustOpen(t, dir), mustOpen(t, dir)
	for _, s := range []*Store{one, two} {
		if err := s.Claim("a"); err != nil {
			t.Fatal(err)
		}
	}
	check := func(name string, want bool) {
		t.Helper()
		if got, err := other.Claimed(name); got != want || err != nil {
			t.Errorf("%s is claimed: %v (%v), want %v", name, got, err, want)
		}
	}
	check("a", true)
	check("b", false)
	// What the turns of writers do leaves claims alone.
	one.turn.take()()
	check("a", true)
	for _, s := range []*Store{one, two} {
		check("a", true)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	check("a", false)
	if err := one.Claim("b"); err == nil {
		t.Error("a closed store claims")
	}
	if _, err := one.Claimed("b"); err == nil {
		t.Error("a closed store tells of claims")
	}
}
