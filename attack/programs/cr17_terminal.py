# CR-17, KS-15: opens the terminal of the operator, reads it, types into it
import fcntl, os, socket, sys, termios

if socket.gethostname() != "sandbox":
    sys.exit(99)
if os.isatty(0) or os.isatty(1) or os.isatty(2):
    print("broke: a standard stream is a terminal")
for path in ("/dev/tty", "/dev/console", "/dev/tty0", "/dev/pts/0", "/dev/pts/1"):
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        print("broke: opened", path)
        print("broke: typed", os.read(fd, 100))
    except OSError as e:
        print(path, e.strerror)
master, slave = os.openpty()
for fd in (0, 1, 2, slave, master):
    for request in (0x5412, 0x541C, 0x541D, 0x5423, 0x4B44, 0x4B4D, 0x5603, 0x5606):
        for high in (0, 1 << 32, 0xFFFFFFFF << 32):
            import ctypes

            libc = ctypes.CDLL(None, use_errno=True)
            buf = ctypes.create_string_buffer(b"x" * 64)
            if libc.ioctl(fd, ctypes.c_ulong(request | high), buf) >= 0:
                print("broke: terminal request", hex(request | high), "on", fd)
# A terminal of its own is ordinary use and must work.
os.setsid() if os.getpid() != os.getsid(0) else None
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
os.write(master, b"hello\n")
if os.read(slave, 100) != b"hello\n":
    print("broke: its own terminal does not work")
try:
    print("broke: typed into its own", fcntl.ioctl(slave, termios.TIOCSTI, b"y"))
except OSError as e:
    print(e.strerror)
if os.read(0, 100) != b"":
    print("broke: there was input")
print("end")
