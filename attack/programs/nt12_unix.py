# NT-12, NT-13, NT-18: connects to unix sockets, abstract and by path; arguments: kind=name
import os, socket, stat, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
for argument in sys.argv[1:]:
    kind, _, name = argument.partition("=")
    address = "\0" + name if kind.startswith("abstract") else name
    for how in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        s = socket.socket(socket.AF_UNIX, how)
        s.settimeout(2)
        try:
            s.connect(address)
            s.sendall(b"x")
            print("broke: connected to", argument, s.recv(100))
        except OSError as e:
            print(argument, e)
        try:
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", address)
            print("broke: sent to", argument)
        except OSError as e:
            pass
for line in open("/proc/net/unix").read().split("\n")[1:]:
    if len(line.split()) > 7:
        print("broke: socket listed:", line)
for folder, folders, names in os.walk("/"):
    if folder == "/":
        folders[:] = [f for f in folders if f not in ("proc", "usr")]  # nobody listens in the image
    for name in names:
        path = os.path.join(folder, name)
        try:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                print("broke: socket", path)
        except OSError:
            pass
print("end")
