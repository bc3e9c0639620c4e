# NT-02: looks up a label by the C library, and asks for it by hand at the given port of the given addresses
import socket, struct, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
label, port = sys.argv[1], int(sys.argv[2])
name = label + ".invalid"
try:
    print("broke: name", name, "is", socket.getaddrinfo(name, 80))
except OSError as e:
    print(name, e)
query = struct.pack(">HHHHHH", 4711, 0x100, 1, 0, 0, 0)
query += b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + b"\0" + struct.pack(">HH", 1, 1)
for line in open("/etc/resolv.conf"):
    if line.startswith("nameserver"):
        print("broke:", line.strip())
for server in sys.argv[3:]:
    s = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(0.2)
    try:
        s.sendto(query, (server, port))
        print("broke: answer of", server, s.recv(500))
    except OSError as e:
        print(server, e)
    s.close()
print("end")
