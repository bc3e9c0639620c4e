package process_test

import (
	"testing"

	"glovebox/internal/sandboxinit/wire"
)

// TestListen has programs listen, which init does for them: everyday ones as ever, with the kernel's own errors, and one that
// takes all the room there is, which gets it back when it closes what it has. How many wait is what the kernel lists.
func TestListen(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"errors": {`
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(listen(udp.fileno()), listen(1000), listen(os.open("/workspace", os.O_RDONLY)), listen(-1), listen(1 << 20))
again = socket.socket(); again.bind(("127.0.0.1", 0)); again.listen(5); again.listen(7); print(errno.errorcode[again.connect_ex(again.getsockname())])
`, "ENOTSUP EBADF ENOTSOCK EBADF EBADF\nEISCONN\n"},
		"everywhere": {`
def meet(family=socket.AF_INET, at=("127.0.0.1", 0)):
    s = socket.socket(family); s.bind(at); s.listen()
    c = socket.socket(family); c.connect(s.getsockname()); c.sendall(b"hello")
    print(s.accept()[0].recv(5).decode())
def run(f, *a):
    t = threading.Thread(target=f, args=a); t.start(); t.join()
meet(); run(meet); meet(socket.AF_INET6, ("::1", 0)); run(meet, socket.AF_UNIX, "/tmp/s")
sys.stdout.flush()
if os.fork() == 0: run(meet); sys.stdout.flush(); os._exit(0)
os.wait()
s = socket.socket(); s.listen(); print(s.getsockname()[1] > 0)
`, "hello\nhello\nhello\nhello\nhello\nTrue\n"},
		"many": {`
all = [socket.create_server(("127.0.0.1", 0), backlog=128) for _ in range(80)]
for s in all: c = socket.create_connection(s.getsockname()); a = s.accept()[0]; c.close(); a.close()
for s in all: s.close()
all = [socket.create_server(("127.0.0.1", 0), backlog=5) for _ in range(100)]
for s in all: s.close()
unix = []
for n in range(100):
    s = socket.socket(socket.AF_UNIX); s.bind("/tmp/%d" % n); s.listen(128); unix.append(s)
for _ in range(300): socket.create_server(("127.0.0.1", 0), backlog=128).close()
print("fine")
`, "fine\n"},
		"bound": {`
for _ in range(2):
    held, waiting = fill()
    print(400 < waiting <= limit, waiting if waiting > limit else "")
    for s in held: s.close()
print(socket.create_server(("127.0.0.1", 0), backlog=128).fileno() > 0)
`, "True \nTrue \nTrue\n"},
		"shorter": {`
def longest(backlog):
    s = socket.create_server(("127.0.0.1", 0), backlog=backlog); crowd(s); s.listen(0); return s
held = []
try:
    while len(held) < 200: held.append(longest(128))
except OSError as e: print(errno.errorcode[e.errno])
print(lengths()[1] <= limit)
`, "ENOBUFS\nTrue\n"},
	} {
		t.Run(name, func(t *testing.T) {
			l := limits()
			l.OpenFiles = 1024
			script := "cat >/workspace/x.py <<'E'\n" + listening + c.script + "E\npython3 -I /workspace/x.py"
			r := start(t, newDriver(t), l, script)
			if got := r.output(t); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if got := r.Posture()["waiting_connections"]; got != "at most 768 of 32 KiB" || wire.WaitingConnections != 768 {
				t.Errorf("posture says %q", got)
			}
		})
	}
}

// listening is what the programs of TestListen have in common.
const listening = `
import ctypes, errno, os, socket, sys, threading
libc, limit = ctypes.CDLL(None, use_errno=True), 768
def listen(fd):
    return "fine" if libc.listen(fd, 5) == 0 else errno.errorcode[ctypes.get_errno()]
def lengths():  # how many sockets listen, and how many connections wait at them
    rows = [r.split() for n in ("tcp", "tcp6") for r in open("/proc/self/net/" + n).readlines()[1:]]
    rows = [int(r[4].split(":")[1], 16) for r in rows if r[3] == "0A"]
    return len(rows), sum(rows)
def crowd(s):  # more than may wait at one
    for _ in range(140):
        c = socket.socket(s.family); c.setblocking(False); c.connect_ex(s.getsockname()); c.close()
def fill():
    held = []
    try:
        while len(held) < 200:
            family, host = ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1"))[len(held) % 2]
            s = socket.socket(family); s.bind((host, 0)); s.listen(4096); crowd(s); held.append(s)
    except OSError as e:
        if e.errno != errno.ENOBUFS: raise
    return held, lengths()[1]
`
