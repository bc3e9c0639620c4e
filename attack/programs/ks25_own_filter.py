# KS-25: adds a filter of its own, with a listener and one that refuses everything; arguments: name=number
import ctypes, os, socket, struct, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
call = dict((a.split("=")[0], int(a.split("=")[1])) for a in sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)


def program(*steps):
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *s) for s in steps))
    return ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))), code


allow, keep1 = program((6, 0, 0, 0x7FFF0000))
notify, keep2 = program((6, 0, 0, 0x7FC00000))
if libc.syscall(call["seccomp"], 1, 8, notify) >= 0:
    print("broke: a listener for notifications")
if libc.syscall(call["seccomp"], 1, 0, allow) != 0:
    print("broke: it may not tighten its own filter", os.strerror(ctypes.get_errno()))
if libc.syscall(call["unshare"], 0x20000) == 0 or libc.syscall(call["mount"], b"x", b"/tmp", b"tmpfs", 0, 0) == 0:
    print("broke: a filter that allows all opened what was closed")
print("end")
