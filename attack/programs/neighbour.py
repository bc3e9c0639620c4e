# the neighbour: a run of somebody else that holds secrets and listens everywhere, until it is ended
import os, socket, sys, threading, time

if socket.gethostname() != "sandbox":
    sys.exit(99)
_, port, name = sys.argv[1:]
text = os.environ["FILE_TEXT"]
for folder in ("/workspace", "/tmp", "/dev/shm", "/outputs"):
    with open(folder + "/neighbour-secret", "w") as f:
        f.write(text)
held = open("/workspace/neighbour-secret")


def greet(s):
    s.listen()
    while True:
        c, _ = s.accept()
        c.sendall(os.environ["BANNER"].encode())
        c.close()


tcp = socket.socket()
tcp.bind(("0.0.0.0", int(port)))
hidden = socket.socket(socket.AF_UNIX)
hidden.bind("\0" + name)
named = socket.socket(socket.AF_UNIX)
named.bind("/tmp/" + name)
for s in (tcp, hidden, named):
    threading.Thread(target=greet, args=(s,), daemon=True).start()
print("ready")
while True:
    time.sleep(60)
