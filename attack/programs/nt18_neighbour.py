# NT-18: looks for the run of somebody else: its port, its sockets, its processes; arguments: port, name, canary paths
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
port, name = int(sys.argv[1]), sys.argv[2]
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, "0.0.0.0")):
    try:
        s = socket.create_connection((address, port), 2)
        print("broke: the neighbour says", s.recv(100))
    except OSError as e:
        print(address, e)
for address in ("\0" + name, "/tmp/" + name, "/workspace/" + name):
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect(address)
        print("broke: the neighbour says", s.recv(100))
    except OSError as e:
        print(repr(address), e)
for folder in ("/workspace", "/tmp", "/dev/shm", "/outputs", "/var/tmp"):
    for found in os.listdir(folder):
        print("broke: file", folder, found)
pids = [p for p in os.listdir("/proc") if p.isdigit() and p not in ("1", str(os.getpid()))]
if pids:
    print("broke: processes", pids)
print("end")
