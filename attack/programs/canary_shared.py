# CR-04: attaches shared memory of the host, of both kinds; arguments: a key, an id, a name below /dev/shm
import ctypes, os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
key, number, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
found = libc.shmget(key, 0, 0o444)
print("segment", found, os.strerror(ctypes.get_errno()))
for i in (number, found):
    at = libc.shmat(i, None, 0o10000)
    if at is not None and at != ctypes.c_void_p(-1).value:
        print("broke: attached", i, ctypes.string_at(at, 64))
try:
    print("broke: read", open("/dev/shm/" + name, "rb").read(100))
except OSError as e:
    print(name, e.strerror)
print("listed:", open("/proc/sysvipc/shm").read() if os.path.exists("/proc/sysvipc/shm") else "nothing")
print("end")
