# FS-31: changes the image: writes, appends, deletes and renames where programs and libraries lie
import json, os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
library = os.path.dirname(json.__file__)


def attempt(name, what):
    try:
        what()
        print("broke:", name)
    except OSError as e:
        print(name, e.strerror)


for folder in ("/usr", "/usr/bin", "/usr/lib", "/usr/local/bin", "/usr/lib/python3/dist-packages", "/etc", "/etc/ssl/certs", "/bin", "/lib",
               "/", "/var", "/code", "/inputs", "/dev", "/run", "/proc/sys", library, os.path.dirname(library)):
    if os.path.isdir(folder):
        attempt("create in " + folder, lambda: open(folder + "/zz-probe", "w"))
        attempt("folder in " + folder, lambda: os.mkdir(folder + "/zz-folder"))
        attempt("mode of " + folder, lambda: os.chmod(folder, 0o777))
for path in ("/usr/bin/env", library + "/__init__.py", "/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/etc/ld.so.cache",
             "/usr/bin/python3", sys.executable):
    if os.path.exists(path):
        attempt("append to " + path, lambda: open(path, "a"))
        attempt("delete " + path, lambda: os.unlink(path))
        attempt("rename " + path, lambda: os.rename(path, path + "-probe"))
        attempt("truncate " + path, lambda: os.truncate(path, 0))
        attempt("mode of " + path, lambda: os.chmod(path, 0o777))
print("end")
