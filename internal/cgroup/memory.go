package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"glovebox/internal/kernelfile"
)

// MemoryAllowed is how many bytes of memory this process and all that it starts can have together: those of the machine, or
// fewer where its own control group, or one above that, has a limit.
func (h *Host) MemoryAllowed() (int64, error) {
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		return 0, fmt.Errorf("read the machine's memory: %w", err)
	}
	membership, err := kernelfile.Read("/proc/self/cgroup")
	if err != nil {
		return 0, fmt.Errorf("find own control group: %w", err)
	}
	limit, err := h.memoryLimit(membership)
	if err != nil {
		return 0, fmt.Errorf("read own limit of memory: %w", err)
	}
	return min(limit, int64(machine.Totalram)*int64(machine.Unit)), nil
}

// memoryLimit is the least limit from the group that a membership names to the top of what is mounted; math.MaxInt64 is
// none. Folders on the way that are not there count for nothing: in a container the path may be that of the host.
func (h *Host) memoryLimit(membership string) (int64, error) {
	least := int64(math.MaxInt64)
	p, ok := h.places["memory"]
	if !ok {
		return least, nil
	}
	file, at := "memory.limit_in_bytes", p.dir
	if p.v2 {
		file = "memory.max"
	}
	for line := range strings.Lines(membership) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || !filepath.IsLocal(strings.TrimPrefix(parts[2], "/")) {
			continue
		}
		if parts[1] == "" && p.v2 || !p.v2 && slices.Contains(strings.Split(parts[1], ","), "memory") {
			at = filepath.Join(p.dir, parts[2])
		}
	}
	for ; ; at = filepath.Dir(at) {
		text, err := read(at, file)
		if err == nil {
			var n int64
			if n, err = number(text); err == nil {
				least = min(least, n)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		if len(at) <= len(p.dir) {
			return least, nil
		}
	}
}
