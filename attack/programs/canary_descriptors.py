# FS-04, CR-05: reads from every descriptor above 2, and from the folders among them
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
for n in range(3, 1024):
    try:
        target = os.readlink("/proc/self/fd/%d" % n)
    except OSError:
        continue
    print("broke: descriptor", n, target)
    for what in (lambda: os.pread(n, 64, 0), lambda: os.listdir(n), lambda: os.open("..", os.O_RDONLY, dir_fd=n)):
        try:
            print("broke: it gives", what())
        except (OSError, ValueError) as e:
            print(n, e)
print("end")
