package sandboxinit

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glovebox/internal/sandboxinit/wire"
)

// TestGrant asks for queues until there is no more room: however many ask, and for however much, the sum stays within the
// bound, the first get a usable length, and many get one at all. When the sockets are gone there is room again.
func TestGrant(t *testing.T) {
	for asked, want := range map[int]struct{ first, sockets int }{128: {95, 80}, 5: {5, 100}, 1: {1, 384}, 0: {0, 768}} {
		l := &listeners{most: wire.WaitingConnections, room: map[uint64]int{}}
		dir := t.TempDir()
		if err := os.MkdirAll(dir+"/self/net", 0o700); err != nil {
			t.Fatal(err)
		}
		list, err := os.Create(dir + "/self/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		defer list.Close()
		list.WriteString(head)
		if l.proc, err = unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(l.proc)
		queue, first, sum := 0, -1, 0
		for ino := uint64(1); ino <= 1000; ino++ {
			if queue, err = l.grant(ino, asked); err != nil {
				break
			}
			l.room[ino] = queue + 1
			list.WriteString(line("0A", strconv.FormatUint(ino, 10)))
			if sum += queue + 1; first < 0 {
				first = queue
			}
		}
		if err != unix.ENOBUFS || sum > wire.WaitingConnections || first != want.first || len(l.room) < want.sockets {
			t.Errorf("asked for %d: %d sockets with room for %d, the first %d, then %v", asked, len(l.room), sum, first, err)
		}
		if err := list.Truncate(int64(len(head))); err != nil {
			t.Fatal(err)
		}
		l.room = map[uint64]int{5: wire.WaitingConnections}
		if queue, err := l.grant(6, asked); err != nil || queue != want.first {
			t.Errorf("asked for %d when all are gone: %d, %v", asked, queue, err)
		}
	}
}

const (
	head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	row  = "   0: 0100007F:1F90 00000000:0000 ST 00000000:00000000 00:00000000 00000000  1000        0 INODE 1 00000000 100 0 0 10 0\n"
)

// line is a line of the kernel's list.
func line(state, inode string) string {
	return strings.NewReplacer("ST", state, "INODE", inode).Replace(row)
}

func TestListening(t *testing.T) {
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
