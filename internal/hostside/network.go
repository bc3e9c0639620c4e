package hostside

import (
	"os"
	"slices"
	"strings"

	"glovebox/driver"
	"glovebox/internal/sandboxinit/wire"
)

// nameServers is the file that says whom to ask for names: the other end of the link, and no other.
const nameServers = "nameserver 198.18.0.1\noptions edns0 timeout:2 attempts:2\n"

// Shown asks init for the files of a network, its name server among them. The file has their contents, and is the last of
// the descriptors that go with the request; the caller closes it.
func Shown(n driver.Network) (*wire.Attach, *os.File, error) {
	contents, _ := n.Contents()
	a := &wire.Attach{Shown: []wire.Shown{{Path: wire.NameServers, Over: true, Content: 0}}}
	for i, f := range slices.Concat(n.Files, n.Over) {
		which := slices.IndexFunc(contents, func(b []byte) bool { return driver.Same(b, f.Data) })
		a.Shown = append(a.Shown, wire.Shown{Path: f.Path, Over: i >= len(n.Files), Content: 1 + which})
	}
	contents = append([][]byte{[]byte(nameServers)}, contents...)
	for _, b := range contents {
		a.Sizes = append(a.Sizes, int64(len(b)))
	}
	file, err := SealedFile(contents...)
	return a, file, err
}

// CheckRoutes tells whether all that /proc/net/route says is that there is the link, and that everything goes to its router.
func CheckRoutes(routes string) bool {
	want := [][]string{{wire.Interface, "00000000", "010012C6", "00000000"},
		{wire.Interface, "000012C6", "00000000", "FCFFFFFF"}}
	var got [][]string
	for line := range strings.Lines(routes) {
		if f := strings.Fields(line); len(f) > 7 && f[0] != "Iface" {
			got = append(got, []string{f[0], f[1], f[2], f[7]})
		}
	}
	return slices.EqualFunc(got, want, slices.Equal[[]string])
}
