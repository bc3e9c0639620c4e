# FS-21: leaves files that look far larger than the disk limit
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
for name, size in (("tera", 1 << 40), ("giga", 10 << 30), ("exa", (1 << 62))):
    try:
        with open("/outputs/" + name, "wb") as f:
            f.truncate(size)
            f.seek(size - 1)
            f.write(b"x")
        print("made", name)
    except OSError as e:
        print(name, e.strerror)
open("/outputs/small", "w").write("fine")
print("end")
