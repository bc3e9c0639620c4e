package process_test

import (
	"bufio"
	"io"
	"testing"
)

// TestSharedByTheKernel is about what the kernel counts for the user who made a namespace, or for nobody, or tells to whoever
// asks: a program gets a small part of it or none.
func TestSharedByTheKernel(t *testing.T) {
	needRoot(t)
	const script = `python3 -I -c '
import ctypes, errno, os, resource, socket
libc = ctypes.CDLL(None, use_errno=True)
count = 0
while libc.inotify_init() >= 0: count += 1
print("inotify", count)
watch = libc.inotify_add_watch(3, b"/usr/bin", 0x20)
print("watch openings", watch, errno.errorcode[ctypes.get_errno()])
ptys = 0
try:
    while True: os.openpty(); ptys += 1
except OSError: pass
print("ptys at most 64:", ptys <= 64)
try: print(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
except OSError as e: print("netlink", errno.errorcode[e.errno])
print("init is seen:", os.path.exists("/proc/1"))
print("pending signals", resource.getrlimit(resource.RLIMIT_SIGPENDING)[0])
print("cores", resource.getrlimit(resource.RLIMIT_CORE)[1])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("cores still", resource.getrlimit(resource.RLIMIT_CORE)[1])
for name in "tcp_rmem", "tcp_max_tw_buckets": print(name, *open("/proc/sys/net/ipv4/" + name).read().split())
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
print("buffer", s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
'`
	l := limits()
	l.OpenFiles = 1024
	const told = `inotify 16
watch openings -1 EPERM
ptys at most 64: True
netlink EAFNOSUPPORT
init is seen: False
pending signals 1024
cores 1
cores still 1
tcp_rmem 4096 32768 32768
tcp_max_tw_buckets 4096
buffer 32768
`
	r := start(t, newDriver(t), l, script)
	if got := r.output(t); got != told {
		t.Errorf("inside:\n%s\nwant:\n%s", got, told)
	}
}

// TestPeersOfUnixSockets: init does the listening, and whoever asks a socket whose it is still hears of the program.
func TestPeersOfUnixSockets(t *testing.T) {
	const script = `python3 -I -c '
import os, socket, struct
s = socket.socket(socket.AF_UNIX); s.bind("/workspace/s"); s.listen(5)
c = socket.socket(socket.AF_UNIX); c.connect("/workspace/s")
print(struct.unpack("3i", c.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1:] == (os.getuid(), os.getgid()))
t = socket.socket(); t.bind(("127.0.0.1", 0)); t.listen(5); socket.create_connection(t.getsockname()); s.listen(1); print("end")'`
	if got := start(t, newDriver(t), limits(), script).output(t); got != "True\nend\n" {
		t.Errorf("inside: %q", got)
	}
}

// TestCopiesTakeNothingFromEachOther: what the kernel counts for whoever made a user namespace it counts for the template too,
// yet a copy that takes all that it can get leaves the next as much, also what its init needs to be made.
func TestCopiesTakeNothingFromEachOther(t *testing.T) {
	w := newWarm(t)
	h := hold(t, w.image, "python")
	tm := w.template(w.spec(), h)
	const greedy = `
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
watches = signals = 0
while libc.inotify_init() >= 0: watches += 1
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
while signals < 5000 and libc.sigqueue(os.getpid(), 40, None) == 0: signals += 1
print(watches, signals, flush=True)
input()
`
	for range 2 {
		in, out := io.Pipe()
		defer out.Close()
		p := begin(t, w.forked(tm, w.spec()), h, limits(), greedy, in)
		line, err := bufio.NewReader(p.Stdout()).ReadString('\n')
		if line != "16 1024\n" {
			t.Errorf("it got %q, %v", line, err)
		}
	}
}
