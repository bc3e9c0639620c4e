package process_test

import (
	"strings"
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
queue = "/proc/sys/net/core/somaxconn"
print("queue of connections", open(queue).read().strip() if os.path.exists(queue) else "none")
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
queue of connections 128
`
	r := start(t, newDriver(t), l, script)
	want := told
	if r.Posture()["waiting_connections"] == "the kernel's own bound" {
		want = strings.Replace(want, "queue of connections 128", "queue of connections none", 1)
	}
	if got := r.output(t); got != want {
		t.Errorf("inside:\n%s\nwant:\n%s", got, want)
	}
}
