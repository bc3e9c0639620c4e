package attack

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// looks joins looks.
func looks(parts ...look) look {
	return func(l *laboratory, all []process) ([]string, error) {
		var found []string
		for _, part := range parts {
			more, err := part(l, all)
			if found = append(found, more...); err != nil {
				return found, err
			}
		}
		return found, nil
	}
}

// noSockets: the process's network has no socket in these tables of /proc/PID/net.
func noSockets(tables ...string) look {
	return each(func(_ *laboratory, p process) ([]string, error) {
		var found []string
		for _, table := range tables {
			text, err := os.ReadFile(p.dir + "/net/" + table)
			if err != nil && !os.IsNotExist(err) {
				return found, fmt.Errorf("%w: %w", errUnseen, err)
			}
			if n := strings.Count(string(text), "\n"); n > 1 { // below the heading
				found = append(found, fmt.Sprintf("%d sockets in the table %s", n-1, table))
			}
		}
		return found, nil
	})
}

// noNetlink: no descriptor of the process is a socket that is in the table of netlink sockets, nor of an unknown family.
func noNetlink() look {
	return each(func(_ *laboratory, p process) ([]string, error) {
		open, err := p.descriptors()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errUnseen, err)
		}
		known := map[string]bool{}
		for _, table := range []string{"unix", "tcp", "tcp6", "udp", "udp6", "udplite", "udplite6"} {
			for _, field := range strings.Fields(p.read("net/" + table)) {
				known[field] = true
			}
		}
		var found []string
		for _, d := range open {
			if inode, ok := strings.CutPrefix(d.link, "socket:["); ok && !known[strings.TrimSuffix(inode, "]")] {
				found = append(found, fmt.Sprintf("descriptor %s is a socket of another family", d.number))
			}
		}
		return found, nil
	})
}

// readOnlyHost: no file system of the host's can be written through the process's mounts, and none is mounted by the
// program.
func readOnlyHost() look {
	return each(func(l *laboratory, p process) ([]string, error) {
		table := strings.TrimSpace(p.read("mountinfo"))
		if table == "" {
			return nil, fmt.Errorf("%w: no table of mounts", errUnseen)
		}
		own := map[string]bool{} // devices of the host's file systems
		for _, dir := range append(l.folders(), "/", "/usr", "/etc", "/home", "/root", "/var") {
			var s unix.Stat_t
			if unix.Stat(dir, &s) == nil {
				own[fmt.Sprintf("%d:%d", unix.Major(s.Dev), unix.Minor(s.Dev))] = true
			}
		}
		var found []string
		for line := range strings.SplitSeq(table, "\n") {
			// 36 35 98:0 /root /mount rw,noatime - ext4 /dev/root rw
			f := strings.Fields(line)
			if len(f) < 6 {
				continue
			}
			if own[f[2]] && slices.Contains(strings.Split(f[5], ","), "rw") {
				found = append(found, "writable: "+f[4])
			}
			if strings.Contains(line, "glovebox-attack") {
				found = append(found, "a mount of the program's: "+f[4])
			}
			if slices.Contains(f, "cgroup") || slices.Contains(f, "cgroup2") || slices.Contains(f, "sysfs") {
				found = append(found, "a file system of the kernel's: "+f[4])
			}
		}
		return found, nil
	})
}

// ordinary: no real-time class, no better priority than any, no exemption when memory is short, no higher limits than
// asked for.
func ordinary(openFiles int) look {
	return each(func(_ *laboratory, p process) ([]string, error) {
		var found []string
		f := p.stat()
		if len(f) < 39 {
			return nil, errUnseen
		}
		if nice, _ := strconv.Atoi(f[19-3]); nice < 0 {
			found = append(found, fmt.Sprintf("a process has the priority %d", nice))
		}
		if class := f[41-3]; class == "1" || class == "2" || class == "6" {
			found = append(found, "a process has the scheduling class "+class)
		}
		if score, err := strconv.Atoi(strings.TrimSpace(p.read("oom_score_adj"))); err != nil {
			return found, fmt.Errorf("%w: %w", errUnseen, err)
		} else if score < 0 {
			found = append(found, fmt.Sprintf("a process is spared when memory is short: %d", score))
		}
		for line := range strings.Lines(p.read("limits")) {
			if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
				if hard, err := strconv.Atoi(strings.Fields(rest)[1]); err != nil || hard > openFiles {
					found = append(found, "a process may open "+strings.Fields(rest)[1]+" files")
				}
				return found, nil
			}
		}
		return found, fmt.Errorf("%w: no limits", errUnseen)
	})
}

// inItsGroup: every process is in a group of the run for what is bounded: in each version 1 hierarchy of a limit, or
// in version 2.
func inItsGroup(l *laboratory, all []process) ([]string, error) {
	return each(func(_ *laboratory, p process) ([]string, error) {
		groups := p.read("cgroup")
		var found []string
		for line := range strings.Lines(groups) {
			_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
			names, path, _ := strings.Cut(rest, ":")
			for name := range strings.SplitSeq(names, ",") {
				if slices.Contains([]string{"memory", "pids", "cpu"}, name) && !strings.Contains(path, "run_") &&
					!strings.Contains(path, "spare_") {
					found = append(found, "a process is in the group "+path+" of "+name)
				}
			}
		}
		if groups == "" {
			return nil, errUnseen
		}
		return found, nil
	})(l, all)
}

// withoutTerminal: no controlling terminal, and not the caller's.
func withoutTerminal() look {
	return each(func(_ *laboratory, p process) ([]string, error) {
		f := p.stat()
		if len(f) < 5 {
			return nil, errUnseen
		}
		own, err := unix.Getsid(0)
		if err != nil {
			return nil, err
		}
		var found []string
		if f[6-3] == strconv.Itoa(own) {
			found = append(found, "a process is in the caller's own session")
		}
		if f[7-3] != "0" {
			found = append(found, "a process has a terminal")
		}
		return found, nil
	})
}

// plainPersonality: no bit of another personality.
func plainPersonality() look {
	return each(func(_ *laboratory, p process) ([]string, error) {
		switch value := strings.TrimSpace(p.read("personality")); strings.Trim(value, "0") {
		case "":
			if value == "" {
				return nil, fmt.Errorf("%w: no personality", errUnseen)
			}
			return nil, nil
		default:
			return []string{"the personality of a process is " + value}, nil
		}
	})
}

// unreachable: nothing listens on the port in the host's own network.
func unreachable(port int) look {
	return func(l *laboratory, all []process) ([]string, error) {
		if len(all) == 0 {
			return nil, errUnseen
		}
		for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
			text, err := os.ReadFile(l.cfg.Proc + "/self/net/" + table)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", errUnseen, err)
			}
			if strings.Contains(string(text), fmt.Sprintf(":%04X ", port)) {
				return []string{fmt.Sprintf("port %d is open in the host's own network", port)}, nil
			}
		}
		return nil, nil
	}
}
