# NT-18: is somebody else's run: serves a banner on a port and on an abstract socket; arguments: port, name, banner
import os, socket, sys, threading, time

if socket.gethostname() != "sandbox":
    sys.exit(99)
port, name, banner = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode()


def serve(s):
    s.listen()
    while True:
        c, _ = s.accept()
        c.sendall(banner)
        c.close()


t, u = socket.socket(), socket.socket(socket.AF_UNIX)
t.bind(("0.0.0.0", port))
u.bind("\0" + name)
for s in (t, u):
    threading.Thread(target=serve, args=(s,), daemon=True).start()
for folder in ("/tmp", "/dev/shm"):
    open(folder + "/" + name, "wb").write(banner)
print("held", flush=True)
time.sleep(600)
