# NT-01, NT-03: connects and sends to the given port of the given addresses
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
port = int(sys.argv[1])
for address in sys.argv[2:]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        s = socket.socket(family, kind)
        s.settimeout(3)
        try:
            s.connect((address, port))
            s.sendall(b"hello")
            if kind == socket.SOCK_STREAM:
                print("broke: connected to", address, s.recv(200))
        except OSError as e:
            print(address, e)
        s.close()
print("end")
