package attack

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// addresses by which a listener on the host's loopback can be reached.
func addresses(port int) []string {
	return []string{strconv.Itoa(port), "127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "127.0.0.53"}
}

const (
	neighbourPort = 28471 // in its own network, so that it cannot be taken
	inboundPort   = 28472
)

func network() []Program {
	sockets := "no visitor at a listener of the host"
	neighbour := &Program{file: "neighbour_hold.py", look: func(*laboratory, []process) ([]string, error) {
		return nil,
			nil
	},
		args: func(l *laboratory) []string {
			return []string{strconv.Itoa(neighbourPort), l.name, l.secret("another run")}
		}}
	return []Program{
		{ID: "NT-01", Axis: "NT", Tries: "connects to a server on the host's loopback", Judged: sockets, file: "net_connect.py",
			args: func(l *laboratory) []string { return addresses(l.listen.TCP) }},
		{ID: "NT-01/udp", Axis: "NT", Tries: "sends packets to the host's loopback", Judged: sockets, file: "net_connect.py",
			args: func(l *laboratory) []string { return addresses(l.listen.UDP) }},
		{ID: "NT-02", Axis: "NT", Tries: "asks for names, by the system and by hand", Judged: sockets, file: "net_names.py",
			args: func(l *laboratory) []string { return append([]string{l.listen.Mark}, addresses(l.listen.UDP)...) }},
		{ID: "NT-07", Axis: "NT", Tries: "looks for any way out",
			Judged: "its network devices and routes, from outside", file: "hold.py",
			look: withoutNetwork()},
		{ID: "NT-08", Axis: "NT", Tries: "opens raw and packet sockets", Judged: "the kernel's tables of sockets",
			file: "hold.py",
			args: words("raw"), look: noSockets("raw", "raw6", "packet", "icmp", "icmp6")},
		{ID: "NT-11", Axis: "NT", Tries: "opens netlink and every rare family of sockets",
			Judged: "its descriptors, from outside",
			file:   "hold.py", args: words("families"), look: looks(noNetlink(), noSockets("packet"))},
		{ID: "NT-12", Axis: "NT", Tries: "connects to abstract unix sockets of the host", Judged: sockets, file: "nt12_unix.py",
			args: func(l *laboratory) []string {
				return []string{"abstract=" + l.listen.Abstract, "abstract-dgram=" + l.listen.Datagram}
			}},
		{ID: "NT-13", Axis: "NT", Tries: "connects to unix sockets of the host by path", Judged: sockets, file: "nt12_unix.py",
			args: func(l *laboratory) []string {
				return []string{"path=" + l.listen.Path, "path=/proc/1/root" + l.listen.Path,
					"path=/proc/self/root" + l.listen.Path}
			}},
		{ID: "NT-17", Axis: "NT", Tries: "listens on every address", Judged: "the host's own table of ports",
			file: "nt17_inbound.py",
			args: words(strconv.Itoa(inboundPort)), sign: "listening 4", look: unreachable(inboundPort)},
		{ID: "NT-18", Axis: "NT", Tries: "looks for another run's ports, sockets, files and processes", Judged: byCanaries,
			file: "nt18_neighbour.py", with: neighbour,
			args: func(l *laboratory) []string { return []string{strconv.Itoa(neighbourPort), l.name} }},
	}
}

func credentials() []Program {
	return []Program{
		{ID: "CR-01", Axis: "CR", Tries: "reads every environment and command line in sight", Judged: byCanaries,
			file: "cr01_environment.py"},
		{ID: "CR-04", Axis: "CR", Tries: "attaches shared memory of the host", Judged: byCanaries, file: "canary_shared.py",
			args: func(l *laboratory) []string {
				return []string{strconv.Itoa(l.shared.key), strconv.Itoa(l.shared.id), l.name}
			}},
		{ID: "CR-05", Axis: "CR", Tries: "is handed more than its three streams",
			Judged: "its descriptors, from outside", file: "hold.py",
			look: plainHanded()},
		{ID: "CR-07", Axis: "CR", Tries: "reads the caller's memory", Judged: byCanaries, file: "canary_memory.py",
			args: func(l *laboratory) []string {
				return append([]string{call("process_vm_readv", unix.SYS_PROCESS_VM_READV)}, l.place()...)
			}},
		{ID: "CR-09", Axis: "CR", Tries: "reads and adds keys of the kernel", Judged: "the caller's keyring, and canaries",
			file: "cr09_keys.py", args: func(l *laboratory) []string {
				return []string{l.name, call("keyctl", unix.SYS_KEYCTL), call("add_key", unix.SYS_ADD_KEY),
					call("request_key", unix.SYS_REQUEST_KEY)}
			}, then: noKeyLeft},
		{ID: "CR-10", Axis: "CR", Tries: "looks for agents, buses, engines and credential files", Judged: byWord, said: true,
			file: "cr10_services.sh"},
		{ID: "CR-12", Axis: "CR", Tries: "searches everything it sees for files of the caller's", Judged: byCanaries,
			file: "canary_find.py", args: func(l *laboratory) []string { return []string{l.name} }},
		{ID: "CR-17", Axis: "CR", Tries: "has the caller's session or terminal", Judged: byLook, file: "hold.py",
			look: withoutTerminal()},
		{ID: "CR-17/type", Axis: "CR", Tries: "types into the caller's terminal, and reads it", Judged: byWord, said: true,
			file: "cr17_terminal.py"},
	}
}

// noKeyLeft demands that the key which the program adds is not in the caller's keyring, and takes it away if it is.
func noKeyLeft(*laboratory, *observed) []string {
	id, err := unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, "user", "left", 0)
	if err != nil {
		return nil
	}
	if _, err := unix.KeyctlInt(unix.KEYCTL_UNLINK, id, unix.KEY_SPEC_USER_KEYRING, 0, 0); err != nil {
		return []string{"a key of the program's is in the caller's keyring, and stays: " + err.Error()}
	}
	return []string{"a key of the program's was in the caller's keyring"}
}

func information() []Program {
	return []Program{
		{ID: "IL-02", Axis: "IL", Tries: "prints whatever may name the host, its users and folders",
			Judged: "the host's own names",
			file:   "il02_host_names.sh", then: namesNothing},
		{ID: "IL-13", Axis: "IL", Tries: "uses more processors than it was given", Judged: byLook, file: "hold.py",
			args: words("priority"), look: onProcessors(1)},
		{ID: "IL-13/count", Axis: "IL", Tries: "counts processors as programs do", Judged: "what it counts",
			file: "il13_processors.sh",
			then: func(_ *laboratory, o *observed) []string {
				if len(o.stdout) < 2 || string(o.stdout[:2]) != "1\n" {
					return []string{fmt.Sprintf("it counts %q processors and was given 1",
						word(string(o.stdout[:min(len(o.stdout), 4)])))}
				}
				return nil
			}},
	}
}
