# LT-01, LT-02, LT-04: looks for what an earlier run left; the argument is the mark
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
for folder in ("/workspace", "/tmp", "/var/tmp", "/dev/shm", "/run", "/outputs", os.path.expanduser("~")):
    for found in os.listdir(folder):
        print("broke: left", folder, found)
for make in (lambda: socket.create_connection(("127.0.0.1", 28473), 1),):
    try:
        print("broke: it answers", make().recv(100))
    except OSError as e:
        print(e)
s = socket.socket(socket.AF_UNIX)
try:
    s.connect("\0left-behind")
    print("broke: it answers", s.recv(100))
except OSError as e:
    print(e)
pids = [p for p in os.listdir("/proc") if p.isdigit()]
if pids != [str(os.getpid())]:
    print("broke: processes", pids)
for name in ("sitecustomize", "usercustomize"):
    module = sys.modules.get(name)
    if module and not module.__file__.startswith("/usr/"):
        print("broke: a start-up hook ran:", module.__file__)
print("end")
