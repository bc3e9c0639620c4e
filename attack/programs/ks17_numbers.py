# KS-17, KS-20: makes one call by its number in a child and says how it went; arguments: the numbers
import ctypes, os, signal, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
for item in sys.argv[1:]:
    first, _, last = item.partition("-")
    for number in range(int(first), int(last or first) + 1):
        pid = os.fork()
        if pid == 0:
            signal.alarm(2)
            got = libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0)
            os._exit(ctypes.get_errno() if got == -1 else 255)
        _, status = os.waitpid(pid, 0)
        print("call", number, -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
print("end")
