# NT-02: looks up names by the C library and by hand-made queries; arguments: a label to look for, a port, then server addresses
import socket, struct, sys, time

if socket.gethostname() != "sandbox":
    sys.exit(99)
label, port = sys.argv[1], int(sys.argv[2])
name = label + ".canary.example.com"
for host in (name, label, "www.example.com", "metadata.google.internal", "host.docker.internal", "gateway", "_gateway", "kubernetes.default.svc"):
    start = time.monotonic()
    try:
        print("broke: name", host, "is", socket.getaddrinfo(host, 80))
    except OSError as e:
        print(host, e)
    if time.monotonic() - start > 2:
        print("broke: no quick answer for", host)
query = struct.pack(">HHHHHH", 4711, 0x100, 1, 0, 0, 0)
query += b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + b"\0" + struct.pack(">HH", 1, 1)
servers = ["127.0.0.1", "127.0.0.53", "8.8.8.8", "9.9.9.9", "::1", "2001:4860:4860::8888", "198.51.100.53"] + sys.argv[3:]
for line in open("/etc/resolv.conf"):
    if line.startswith("nameserver"):
        print("broke:", line.strip())
for server in servers:
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        for p in (53, port, 853):
            s = socket.socket(family, kind)
            s.settimeout(0.2)
            try:
                s.connect((server, p))
                s.sendall(query if kind == socket.SOCK_DGRAM else struct.pack(">H", len(query)) + query)
                print("broke: answer of", server, s.recv(500))
            except OSError as e:
                pass
            s.close()
print("end")
