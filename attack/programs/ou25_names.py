# FS-25, FS-26, AU-01: leaves artifacts with names that are hard to show, and one deep tree
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)

for n in (b"\xff\xfe", b"a\nb", b"\x1b[2Jx", b"-rf", b"x" * 255, b"tab\there", b"*", b'"quo\'te', b"back\\slash", "\u202egpj.exe".encode(),
          b"space ", b"..x", b"CON", b'a\n{"event":"run.end","user":"root"}', b"$(id)", b"`id`", b";id;.py", "\U000E0041".encode()):
    with open(b"/outputs/" + n, "wb") as f:
        f.write(b"content")
os.makedirs("/tmp/deep")
os.chdir("/tmp/deep")
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
os.chdir("/outputs")
for _ in range(2000):
    os.mkdir("d")
    os.chdir("d")
open("deep", "w").write("content")
print("end")
