# CR-09, KS-09: reads and adds keys of the kernel; arguments: the key's name, then call numbers name=number
import ctypes, os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
name = sys.argv[1].encode()
call = dict((a.split("=")[0], int(a.split("=")[1])) for a in sys.argv[2:])
libc = ctypes.CDLL(None, use_errno=True)
buf = ctypes.create_string_buffer(4096)


def attempt(what, *args):
    got = libc.syscall(*args)
    if got >= 0:
        print("broke:", what, got, buf.raw[:80])
    else:
        print(what, os.strerror(ctypes.get_errno()))


for ring in (-1, -2, -3, -4, -5, -6, -7, -8):
    attempt("ring id", call["keyctl"], 0, ring, 1)
    attempt("read ring", call["keyctl"], 11, ring, buf, 4096)
    attempt("search", call["keyctl"], 10, ring, b"user", name, 0)
    attempt("describe", call["keyctl"], 6, ring, buf, 4096)
    attempt("add", call["add_key"], b"user", b"left", b"x", 1, ring)
attempt("join", call["keyctl"], 1, b"other")
attempt("persistent", call["keyctl"], 22, -1, -3)
attempt("request", call["request_key"], b"user", name, 0, -3)
for path in ("/proc/keys", "/proc/key-users"):
    data = open(path).read() if os.path.exists(path) else ""
    if data:
        print("broke:", path, data)
print("end")
