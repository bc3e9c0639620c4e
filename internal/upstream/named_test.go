package upstream

import (
	"net"
	"strings"
	"testing"
)

// TestNamed: what was named is reached, also on this machine, and nothing else is, nor what a machine is told by.
func TestNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there := l.Addr().String()
	for _, c := range []struct {
		named, dialled, says string
	}{
		{"127.0.0.1", there, ""},
		{there, there, ""},
		{"127.0.0.1:1", there, "was not named"},
		{"127.0.0.2", there, "was not named"},
		{"localhost", there, "was not named"},
		{"127.0.0.1", "no port", "missing port"},
		{"169.254.169.254", "169.254.169.254:80", "no address of a server"},
		{"::ffff:169.254.169.254", "[::ffff:169.254.169.254]:80", "no address of a server"},
		{"0.0.0.0", strings.Replace(there, "127.0.0.1", "0.0.0.0", 1), "no address of a server"},
		{"224.0.0.1", "224.0.0.1:80", "no address of a server"},
	} {
		n := &Named{Hosts: []string{c.named}}
		conn, err := n.DialContext(t.Context(), "tcp", c.dialled)
		switch {
		case err == nil:
			conn.Close()
			if c.says != "" {
				t.Errorf("%+v: connected", c)
			}
		case c.says == "" || !strings.Contains(err.Error(), c.says):
			t.Errorf("%+v: %v", c, err)
		}
	}
}
