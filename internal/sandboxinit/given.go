package sandboxinit

import (
	"golang.org/x/sys/unix"

	"glovebox/internal/sandboxinit/wire"
)

// maxGiven bounds the descriptors that a program is given.
const maxGiven = 16

// makeRoom copies what the child still needs once it has put the program's descriptors in place, and these themselves, out
// of the way of their places. What it returns is closed here once the child has been forked.
func (c *child) makeRoom() (moved []int, err error) {
	if len(c.given) == 0 {
		return nil, nil
	}
	const above = wire.FirstFile + maxGiven
	needed := []*int{&c.report, &c.gate}
	if c.landlock >= 0 {
		needed = append(needed, &c.landlock)
	}
	for i := range c.given {
		needed = append(needed, &c.given[i])
	}
	for _, n := range needed {
		fd, err := unix.FcntlInt(uintptr(*n), unix.F_DUPFD_CLOEXEC, above)
		if err != nil {
			return moved, err
		}
		*n, moved = fd, append(moved, fd)
	}
	return moved, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
