package attack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// look examines the living processes of a run from outside. The error says why they cannot be seen: then nothing is
// known.
type look func(l *laboratory, all []process) (found []string, err error)

var errUnseen = errors.New("its processes cannot be seen from here")

// each looks at every process. A process without what the look needs is an error, never a pass.
func each(at func(l *laboratory, p process) ([]string, error)) look {
	return func(l *laboratory, all []process) ([]string, error) {
		if len(all) == 0 {
			return nil, errUnseen
		}
		var found []string
		for _, p := range all {
			more, err := at(l, p)
			if err != nil {
				return found, err
			}
			found = append(found, more...)
		}
		slices.Sort(found)
		return slices.Compact(found), nil
	}
}

// statusOf demands of every thread that each key of its status has a value that is good.
func statusOf(good func(key, value string) bool, keys ...string) look {
	return each(func(_ *laboratory, p process) ([]string, error) {
		threads := p.threads()
		if len(threads) == 0 {
			return nil, errUnseen
		}
		var found []string
		for _, t := range threads {
			for _, key := range keys {
				value := t.status(key)
				if value == "" {
					return found, fmt.Errorf("%w: no %s", errUnseen, key)
				}
				if !good(key, value) {
					found = append(found, fmt.Sprintf("%s of a process is %s", key, value))
				}
			}
		}
		return found, nil
	})
}

// unprivileged: no capability, and none to be had.
func unprivileged() look {
	return statusOf(func(key, value string) bool {
		if key == "NoNewPrivs" {
			return value == "1"
		}
		return strings.Trim(value, "0") == ""
	}, "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
}

func filtered() look {
	return statusOf(func(_, value string) bool { return value == "2" }, "Seccomp")
}

// foreign: no id of the host's root, and one id for all.
func foreign() look {
	return statusOf(func(_, value string) bool {
		ids := strings.Fields(value)
		return len(ids) == 4 && ids[0] != "0" && len(slices.Compact(ids)) == 1
	}, "Uid", "Gid")
}

func onProcessors(most int) look {
	return statusOf(func(_, value string) bool { return processors(value) <= most }, "Cpus_allowed_list")
}

// processors counts a list such as 0-3,6.
func processors(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		from, to, span := strings.Cut(part, "-")
		first, _ := strconv.Atoi(from)
		last, err := strconv.Atoi(to)
		if !span || err != nil {
			last = first
		}
		n += last - first + 1
	}
	return n
}

// apart: the namespaces are none of the host's, and the same for all of the run.
func apart(l *laboratory, all []process) ([]string, error) {
	if len(all) == 0 {
		return nil, errUnseen
	}
	var found []string
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts"} {
		host, err := os.Readlink(filepath.Join(l.cfg.Proc, "self/ns", kind))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errUnseen, err)
		}
		first := ""
		for _, p := range all {
			own, err := os.Readlink(filepath.Join(p.dir, "ns", kind))
			if err != nil {
				return found, errUnseen
			}
			if own == host {
				found = append(found, "a process is in the host's "+kind+" namespace")
			}
			if first == "" {
				first = own
			} else if own != first {
				found = append(found, "a process has a "+kind+" namespace of its own making")
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// withoutNetwork: a loopback alone, and no route but to it.
func withoutNetwork() look {
	return each(func(_ *laboratory, p process) ([]string, error) {
		devices := strings.Split(strings.TrimSpace(p.read("net/dev")), "\n")
		if len(devices) < 3 {
			return nil, fmt.Errorf("%w: no list of network devices", errUnseen)
		}
		var found []string
		for _, d := range devices[2:] {
			if name, _, _ := strings.Cut(strings.TrimSpace(d), ":"); name != "lo" {
				found = append(found, "a network device: "+name)
			}
		}
		if routes := strings.Split(strings.TrimSpace(p.read("net/route")), "\n"); len(routes) > 1 {
			found = append(found, "a route: "+routes[1])
		}
		for route := range strings.SplitSeq(strings.TrimSpace(p.read("net/ipv6_route")), "\n") {
			if route != "" && !strings.HasSuffix(route, " lo") {
				found = append(found, "a route: "+route)
			}
		}
		return found, nil
	})
}

// kernel objects that a program can only hold if a call went through that must be refused, by what /proc calls them.
var forbidden = []string{"[io_uring]", "[userfaultfd]", "[perf_event]", "bpf-", "[fanotify]", "[fscontext]",
	"seccomp notify", "/secretmem"}

// handed looks at every descriptor of every process; wrong says what is wrong with one, or nothing.
func handed(wrong func(descriptor) string) look {
	return each(func(_ *laboratory, p process) ([]string, error) {
		open, err := p.descriptors()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errUnseen, err)
		}
		var found []string
		for _, d := range open {
			if why := wrong(d); why != "" {
				found = append(found, fmt.Sprintf("descriptor %s is %s: %s", d.number, why, d.link))
			}
		}
		return found, nil
	})
}

// emptyHanded: only descriptors that a program may have.
func emptyHanded() look { return handed(descriptor.wrong) }

// plainHanded: nothing at all but the three streams, which are pipes or the null device.
func plainHanded() look { return handed(descriptor.surplus) }

// wrong says what is wrong with a descriptor, or nothing.
func (d descriptor) wrong() string {
	for _, name := range forbidden {
		if strings.Contains(d.link, name) {
			return "a kernel object that is out of bounds"
		}
	}
	harmless := []uint64{unix.Mkdev(1, 3), unix.Mkdev(1, 5), unix.Mkdev(1, 7), unix.Mkdev(1, 8), unix.Mkdev(1, 9),
		unix.Mkdev(5, 0),
		unix.Mkdev(5, 2)}
	switch kind := d.mode & unix.S_IFMT; {
	case kind == unix.S_IFBLK, kind == unix.S_IFCHR && !slices.Contains(harmless, d.device) && unix.Major(d.device) != 136:
		return "a device"
	case kind == unix.S_IFREG && d.writable && (d.magic == unix.PROC_SUPER_MAGIC || d.magic == unix.SYSFS_MAGIC):
		return "a file of the kernel's, open for writing"
	case d.magic == unix.CGROUP_SUPER_MAGIC, d.magic == unix.CGROUP2_SUPER_MAGIC:
		return "a file of the control groups"
	}
	return ""
}

// surplus says that a descriptor is none of the three streams, or nothing.
func (d descriptor) surplus() string {
	kind := d.mode & unix.S_IFMT
	plain := kind == unix.S_IFIFO || kind == unix.S_IFCHR && d.device == unix.Mkdev(1, 3)
	if n, err := strconv.Atoi(d.number); err != nil || n > 2 || !plain {
		return "open"
	}
	return ""
}
