package sandboxinit

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glovebox/internal/sandboxinit/wire"
)

// TestGrant asks for queues until there is no more room: however many ask, and for however much, the sum stays within the
// bound, the first get a usable length, and many get one at all.
func TestGrant(t *testing.T) {
	for asked, want := range map[int]struct{ first, sockets int }{128: {95, 80}, 5: {5, 100}, 1: {1, 384}, 0: {0, 768}} {
		l := &listeners{room: map[uint64]int{}}
		sum, first := 0, 0
		for {
			// Everything that is known is found again, as long as nothing is counted in between.
			l.since = 0
			left := l.left(0)
			if left < 2 {
				break
			}
			ino := uint64(len(l.room) + 1)
			queue, err := l.grant(ino, asked)
			if err != nil || queue > asked {
				t.Fatalf("asked for %d with %d left: %d, %v", asked, left, queue, err)
			}
			l.room[ino] = queue + 1
			if sum += queue + 1; len(l.room) == 1 {
				first = queue
			}
		}
		if sum > wire.WaitingConnections || first != want.first || len(l.room) < want.sockets-1 {
			t.Errorf("asked for %d: %d sockets with room for %d, the first %d", asked, len(l.room), sum, first)
		}
	}
}

func TestListening(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	const row = "   0: 0100007F:1F90 00000000:0000 ST 00000000:00000000 00:00000000 00000000  1000        0 INODE 1 00000000 100 0 0 10 0\n"
	line := func(state, inode string) string { return strings.NewReplacer("ST", state, "INODE", inode).Replace(row) }
	for name, c := range map[string]struct {
		list string
		want []uint64
		err  error
	}{
		"none":                 {list: head},
		"nothing":              {},
		"two, then others":     {list: head + line("0A", "7") + line("0A", "9") + line("01", "11") + line("0A", "13"), want: []uint64{7, 9}},
		"not a number":         {list: head + line("0A", "x"), err: unix.EPROTO},
		"a line that is short": {list: head + "0: 1 2 0A\n", err: unix.EPROTO},
	} {
		var got []uint64
		err := listening(strings.NewReader(c.list), func(ino uint64) { got = append(got, ino) })
		if err != c.err || !slices.Equal(got, c.want) {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
}
