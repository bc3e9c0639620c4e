# CR-07: reads memory of other processes; arguments: name=number of the call, then a process of the host, an address and a size
import ctypes, os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
number = int(sys.argv[1].split("=")[1])
pid, address, size = (int(a) for a in sys.argv[2:5])
libc = ctypes.CDLL(None, use_errno=True)
buf = ctypes.create_string_buffer(size)


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


here, there = Vector(ctypes.addressof(buf), size), Vector(address, size)
seen = [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]
for p in [pid] + seen:
    if libc.syscall(number, p, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) >= 0:
        print("broke: memory of", p, buf.raw)
    else:
        print(p, os.strerror(ctypes.get_errno()))
    for name in ("mem", "environ"):
        try:
            f = os.open("/proc/%d/%s" % (p, name), os.O_RDONLY)
            data = os.pread(f, size, address if name == "mem" else 0)
            if data:
                print("broke: read", name, "of", p, data)
        except OSError as e:
            print(p, name, e.strerror)
print("end")
