# FS-18: changes an input in every way there is
import mmap, os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
path = "/inputs/a"
before = (open(path, "rb").read(), os.stat(path))


def attempt(name, what):
    try:
        what()
        print("broke:", name)
    except (OSError, ValueError) as e:
        print(name, e)


fd = os.open(path, os.O_RDONLY)
attempt("open to write", lambda: os.open(path, os.O_WRONLY))
attempt("open to append", lambda: os.open(path, os.O_RDWR | os.O_APPEND))
attempt("open and empty", lambda: os.open(path, os.O_RDONLY | os.O_TRUNC))
attempt("truncate", lambda: os.truncate(path, 0))
attempt("ftruncate", lambda: os.ftruncate(fd, 0))
attempt("chmod", lambda: os.chmod(path, 0o777))
attempt("fchmod", lambda: os.fchmod(fd, 0o777))
attempt("chown", lambda: os.chown(path, os.getuid(), os.getgid()))
attempt("utime", lambda: os.utime(path))
attempt("rename over it", lambda: (open("/workspace/n", "w").close(), os.rename("/workspace/n", path)))
attempt("rename it", lambda: os.rename(path, "/inputs/b"))
attempt("unlink", lambda: os.unlink(path))
attempt("link in", lambda: os.link(path, "/inputs/c"))
attempt("link out", lambda: os.link(path, "/workspace/c"))
attempt("symlink", lambda: os.symlink("/etc/passwd", "/inputs/d"))
attempt("create", lambda: open("/inputs/e", "w"))
attempt("mkdir", lambda: os.mkdir("/inputs/f"))
attempt("nameless file", lambda: os.open("/inputs", os.O_TMPFILE | os.O_WRONLY))
attempt("attribute", lambda: os.setxattr(path, "user.x", b"1"))
attempt("allocate", lambda: os.posix_fallocate(fd, 0, 1 << 20))
attempt("shared map", lambda: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_WRITE))
attempt("through /proc", lambda: open("/proc/self/fd/%d" % fd, "w"))
attempt("folder's mode", lambda: os.chmod("/inputs", 0o777))
attempt("the code", lambda: open("/code/" + os.path.basename(__file__), "w"))
after = (open(path, "rb").read(), os.stat(path))
if before[0] != after[0] or before[1][:9] != after[1][:9]:
    print("broke: it changed")
print("end")
