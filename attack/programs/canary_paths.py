# FS-01, CR-12: reads the given paths, plainly and by every other way that leads to the same place
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
for path in sys.argv[1:]:
    folder, name = os.path.split(path)
    for how in (path, "/proc/self/root" + path, "/proc/1/root" + path, "/proc/1/cwd" + path, "//" + path):
        try:
            with open(how, "rb") as f:
                print("broke: read", how, f.read(200))
        except OSError as e:
            print(how, e.strerror)
        try:
            if name in os.listdir(os.path.dirname(how)):
                print("broke: listed", how)
        except OSError:
            pass
print("end")
