package hostside

import (
	"testing"

	"glovebox"
	"glovebox/driver"
)

func TestFreeOnDisk(t *testing.T) {
	const mib = int64(glovebox.MiB)
	for _, c := range []struct {
		name              string
		used, free, limit int64
		want              int64
	}{
		{"empty", 0, 64*mib + 300_000, 64 * mib, 64 * mib},
		{"at the limit with blocks of the tables left", 64 * mib, 303_104, 64 * mib, 0},
		{"beyond the limit", 64*mib + 200_000, 100_000, 64 * mib, 0},
		{"less left than a large write takes", 255 * mib, mib, 256 * mib, 0},
		{"room for a large write", 253 * mib, 3*mib + 300_000, 256 * mib, 3 * mib},
		{"small limit, half full", 32 << 10, 40 << 10, 64 << 10, 32 << 10},
		{"small limit, one block left", 60 << 10, 4 << 10, 64 << 10, 4 << 10},
		{"no blocks", 60 << 10, 0, 64 << 10, 0},
	} {
		if got := freeOnDisk(driver.DiskUse{Used: c.used, FreeBytes: c.free}, c.limit); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestInMemoryInstead(t *testing.T) {
	for _, c := range []struct {
		memory, disk glovebox.Size
		want         string
	}{
		{64 * glovebox.MiB, 256 * glovebox.MiB, "ask for --memory of at least 65MiB and leave --disk out, or ask for --memory of at least " +
			"320MiB, or run as root"},
		{64 * glovebox.MiB, glovebox.MiB, "ask for --memory of at least 65MiB, or run as root"},
		{64 * glovebox.MiB, 64 * glovebox.KiB, "ask for --memory of at least 65MiB, or run as root"},
		{100 * glovebox.MiB, 64 * glovebox.MiB, "ask for --disk 36MiB at most, or ask for --memory of at least 128MiB, or run as root"},
	} {
		if got := inMemoryInstead(glovebox.Limits{Memory: c.memory, Disk: c.disk}); got != c.want {
			t.Errorf("%v of memory, %v of disk: %q, want %q", c.memory, c.disk, got, c.want)
		}
	}
}
