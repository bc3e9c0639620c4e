# FS-02: climbs out of the workspace by dot-dot, by relative opens and after changing folder
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
up = "../" * 40


def show(how, fd):
    print("broke:", how, os.read(fd, 200))


for path in sys.argv[1:]:
    tail = path.lstrip("/")
    for base in ("/workspace", "/tmp", "/outputs", "/inputs", "/proc/self/cwd", "/proc/1/cwd", "/proc/self/fd", "/dev/fd", "/"):
        try:
            show("open " + base, os.open(base + "/" + up + tail, os.O_RDONLY))
        except OSError:
            pass
        try:
            d = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            show("openat " + base, os.open(up + tail, os.O_RDONLY, dir_fd=d))
        except OSError:
            pass
        try:
            os.fchdir(d)
            for _ in range(40):
                os.chdir("..")
            show("fchdir " + base, os.open(tail, os.O_RDONLY))
        except OSError:
            pass
        os.close(d)
os.chdir("/workspace")
if os.getcwd() != "/workspace" or os.readlink("/proc/self/cwd") != "/workspace":
    print("broke: folder is called", os.getcwd(), os.readlink("/proc/self/cwd"))
os.chdir("/" + up)
if os.getcwd() != "/":
    print("broke: above the root is", os.getcwd())
print("end")
