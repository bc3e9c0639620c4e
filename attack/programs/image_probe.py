# FS-31: makes files of the given name where programs, libraries and settings lie
import json, os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
library = os.path.dirname(json.__file__)
for folder in ("/usr", "/usr/bin", "/usr/lib", "/usr/local/bin", "/etc", "/bin", "/lib", "/", "/var", "/code", "/inputs", library):
    for make in (lambda p: os.close(os.open(p, os.O_CREAT | os.O_EXCL | os.O_WRONLY)), os.mkdir, lambda p: os.symlink("x", p)):
        try:
            make(folder + "/" + sys.argv[1])
            print("broke: made a name in", folder)
            break
        except OSError as e:
            print(folder, e.strerror)
print("end")
