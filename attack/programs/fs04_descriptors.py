# FS-04, CR-05: uses every descriptor above 2 for what it may be good for
import fcntl, os, socket, stat, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
mine = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
names = [int(n) for n in os.listdir(mine)]
for n in sorted(set(names) | set(range(3, 1024))):
    if n <= 2 or n == mine:
        continue
    try:
        info = os.fstat(n)
    except OSError:
        continue
    try:
        target = os.readlink("/proc/self/fd/%d" % n)
    except OSError:
        continue  # what listdir itself had open
    print("broke: descriptor", n, target, oct(info.st_mode))
    for what in (lambda: os.read(n, 64), lambda: os.write(n, b"x"), lambda: os.lseek(n, 0, 0), lambda: fcntl.ioctl(n, 0x541B, b"    "),
                 lambda: socket.socket(fileno=os.dup(n)).getpeername(), lambda: os.open("../../etc/shadow", os.O_RDONLY, dir_fd=n)):
        try:
            print("broke: it gives", what())
        except (OSError, ValueError) as e:
            print(n, e)
for n in (0, 1, 2):
    mode = os.fstat(n).st_mode
    print(n, os.readlink("/proc/self/fd/%d" % n), stat.filemode(mode))
    if stat.S_ISDIR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        print("broke: standard stream", n, "is a", stat.filemode(mode))
print("end")
