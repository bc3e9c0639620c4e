# FS-12, FS-41: changes the given files in ways that leave a trace and no damage: their time and mode, a write of nothing
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
for path in sys.argv[1:]:
    for how in (path, "/proc/self/root" + path, "/proc/1/root" + path):
        for name, what in (("utime", lambda: os.utime(how)), ("mode", lambda: os.chmod(how, 0o600)),
                           ("write", lambda: os.close(os.open(how, os.O_WRONLY)))):
            try:
                what()
                print("broke:", name, how)
            except OSError as e:
                print(how, e.strerror)
print("end")
