# CR-07, KS-05, KS-11, IL-07: reaches into other processes; arguments: call numbers, name=number
import ctypes, errno, glob, os, signal, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
call = dict((a.split("=")[0], int(a.split("=")[1])) for a in sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    signal.pause()
buf = ctypes.create_string_buffer(4096)


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


here = Vector(ctypes.addressof(buf), 64)
there = Vector(ctypes.addressof(buf), 64)


def attempt(name, *args):
    got = libc.syscall(call[name], *args)
    if got >= 0:
        print("broke:", name, args[:2], "gave", got)
    else:
        print(name, args[:2], os.strerror(ctypes.get_errno()))


attach, seize, traceme = 16, 0x4206, 0
for pid in [1, os.getppid(), child] + list(range(2, 40)):
    if pid == os.getpid():
        continue
    attempt("ptrace", attach, pid, 0, 0)
    attempt("ptrace", seize, pid, 0, 0)
    attempt("process_vm_readv", pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    attempt("process_vm_writev", pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    attempt("kcmp", os.getpid(), pid, 0, 0, 0)
    pidfd = libc.syscall(call["pidfd_open"], pid, 0)
    if pidfd >= 0:
        for n in range(6):
            attempt("pidfd_getfd", pidfd, n, 0)
        attempt("process_madvise", pidfd, ctypes.byref(there), 1, 20, 0)
        attempt("process_mrelease", pidfd, 0)
        attempt("setns", pidfd, 0x10000000 | 0x20000)
    if pid == child:
        continue
    for name in ("mem", "maps", "environ", "stack", "syscall", "io", "pagemap"):
        try:
            data = open("/proc/%d/%s" % (pid, name), "rb").read(64)
            if data:
                print("broke: read", name, "of", pid, data)
        except OSError as e:
            print(pid, name, e.strerror)
    try:
        for n in os.listdir("/proc/%d/fd" % pid):
            print("broke: descriptors of", pid, n)
    except OSError as e:
        print(pid, "fd", e.strerror)
attempt("ptrace", traceme, 0, 0, 0)
for path in glob.glob("/proc/[0-9]*/ns/*"):
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        continue
    attempt("setns", fd, 0)
    os.close(fd)
for pid in (1, -1):
    for sig in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        if pid == 1:
            try:
                os.kill(1, sig)
                print("broke: may send", sig, "to the first process")
            except OSError as e:
                print(pid, sig, e.strerror)
seen = []
for pid in range(1, 100000):
    try:
        os.kill(pid, 0)
        seen.append(pid)
    except ProcessLookupError:
        pass
    except PermissionError:
        # A thread of the sandbox's first process has a number too.
        if libc.syscall(234 if os.uname().machine == "x86_64" else 131, 1, pid, 0) == 0 or ctypes.get_errno() != errno.EPERM:
            print("broke: there is a process", pid)
if not set(seen) <= {os.getpid(), child}:
    print("broke: processes", seen)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print("end")
