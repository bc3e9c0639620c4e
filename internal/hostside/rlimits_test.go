package hostside

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/sandboxinit/wire"
)

// TestOwnHardLimits is about hard limits of the caller: each is refused by name with what mends it, or stands against
// nothing that was granted.
func TestOwnHardLimits(t *testing.T) {
	const pipe = "|/usr/share/apport/apport %p\n"
	open := map[uintptr]uint64{unix.RLIMIT_NOFILE: 20000, unix.RLIMIT_NPROC: 10000, unix.RLIMIT_AS: unix.RLIM_INFINITY,
		unix.RLIMIT_CPU: unix.RLIM_INFINITY, unix.RLIMIT_DATA: unix.RLIM_INFINITY, unix.RLIMIT_FSIZE: unix.RLIM_INFINITY,
		unix.RLIMIT_CORE: unix.RLIM_INFINITY}
	for name, c := range map[string]struct {
		what    uintptr
		hard    uint64
		pattern string
		fix     string // empty: not refused
	}{
		"nothing in the way":        {unix.RLIMIT_CORE, unix.RLIM_INFINITY, pipe, ""},
		"descriptors as granted":    {unix.RLIMIT_NOFILE, 1024, "", ""},
		"too few descriptors":       {unix.RLIMIT_NOFILE, 1023, "", "ulimit -Hn 1024"},
		"processes as granted":      {unix.RLIMIT_NPROC, 160, "", ""},
		"too few processes":         {unix.RLIMIT_NPROC, 159, "", "(as root: ulimit -Hu 160), or ask for --processes 127"},
		"too few for init":          {unix.RLIMIT_NPROC, 3, "", "(as root: ulimit -Hu 160)"},
		"address space":             {unix.RLIMIT_AS, 1 << 40, "", "ulimit -H -v"},
		"CPU time":                  {unix.RLIMIT_CPU, 1 << 20, "", "ulimit -H -t"},
		"data":                      {unix.RLIMIT_DATA, 1 << 40, "", "ulimit -H -d"},
		"size of a file":            {unix.RLIMIT_FSIZE, 1 << 40, "", "ulimit -H -f"},
		"no cores, and to a file":   {unix.RLIMIT_CORE, 0, "core\n", ""},
		"no cores, but to a helper": {unix.RLIMIT_CORE, 0, pipe, "ulimit -Hc unlimited"},
		"some cores, to a helper":   {unix.RLIMIT_CORE, 1, pipe, ""},
	} {
		hard := maps.Clone(open)
		hard[c.what] = c.hard
		err := judgeOwnLimits(glovebox.Limits{OpenFiles: 1024, Processes: 128}, hard, c.pattern)
		var e *glovebox.Error
		switch {
		case c.fix == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.fix != "" && (!errors.As(err, &e) || e.Code != glovebox.CodeUnavailable || !strings.Contains(e.Fix, c.fix)):
			t.Errorf("%s: %v, want unavailable with %q", name, err, c.fix)
		case c.fix != "" && c.hard < 100 && c.what == unix.RLIMIT_NPROC && strings.Contains(e.Fix, "--processes"):
			t.Errorf("%s: %q helps nobody", name, e.Fix)
		}
	}
}

// TestLimitsUnder holds what the program gets beneath a lower hard limit of its caller.
func TestLimitsUnder(t *testing.T) {
	for name, c := range map[string]struct {
		limit            wire.Rlimit
		own, soft, above uint64
	}{
		"open":                  {wire.Rlimit{Soft: 1, Hard: 1}, unix.RLIM_INFINITY, 1, 1},
		"lower stays":           {wire.Rlimit{Soft: 1024, Hard: 1024}, 10, 10, 10},
		"none stays none":       {wire.Rlimit{Soft: 1, Hard: 1}, 0, 0, 0},
		"hard as it is":         {wire.Rlimit{Soft: 8, Hard: unix.RLIM_INFINITY}, 100, 8, 100},
		"soft beneath the hard": {wire.Rlimit{Soft: 8, Hard: unix.RLIM_INFINITY}, 4, 4, 4},
	} {
		if soft, hard := c.limit.Under(c.own); soft != c.soft || hard != c.above {
			t.Errorf("%s: %d and %d, want %d and %d", name, soft, hard, c.soft, c.above)
		}
	}
}
