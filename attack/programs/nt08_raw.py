# NT-08, NT-11, KS-13: opens raw, packet and rare sockets, and asks netlink
import ctypes, os, socket, struct, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
for family, kind, protocol in [(2, 3, p) for p in (1, 6, 17, 255)] + [(10, 3, p) for p in (58, 17, 255)] + [
        (17, 3, 0x300), (17, 2, 0x300), (17, 10, 0x300), (2, 10, 0), (2, 2, 1), (2, 1, 132), (2, 5, 132), (2, 1, 262), (10, 2, 58)]:
    try:
        socket.socket(family, kind, protocol)
        print("broke: raw socket", family, kind, protocol)
    except OSError as e:
        print(family, kind, protocol, e.strerror)
for family in range(0, 64):
    if family in (1, 2, 10, 16):
        continue
    for kind in (1, 2, 3, 5):
        try:
            socket.socket(family, kind, 0)
            print("broke: family", family, kind)
        except OSError:
            pass
for protocol in range(1, 32):
    try:
        socket.socket(16, 3, protocol)
        print("broke: netlink protocol", protocol)
    except OSError:
        pass


def ask(message, flags, payload):
    s = socket.socket(16, 3, 0)
    s.settimeout(1)
    s.bind((0, 0))
    s.send(struct.pack("IHHII", 16 + len(payload), message, 1 | flags, 1, 0) + payload)
    return s.recv(65536)


def errors(name, message, flags, payload):
    try:
        data = ask(message, flags, payload)
        size, kind = struct.unpack("IH", data[:6])
        if kind != 2 or struct.unpack("i", data[16:20])[0] == 0:
            print("broke: netlink let", name)
        else:
            print(name, os.strerror(-struct.unpack("i", data[16:20])[0]))
    except OSError as e:
        print(name, e)


def attribute(kind, value):
    return struct.pack("HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


errors("a new link", 16, 0x600 | 4, struct.pack("BBHiII", 0, 0, 0, 0, 1, 1) + attribute(3, b"dummy9\0") + attribute(18, attribute(1, b"dummy\0")))
errors("a new address", 20, 0x600 | 4, struct.pack("BBBBI", 2, 24, 0, 0, 1) + attribute(2, socket.inet_aton("198.51.100.9")))
errors("a new route", 24, 0x600 | 4, struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(4, struct.pack("I", 1)))
try:
    data = ask(18, 0x300, struct.pack("BBHiII", 0, 0, 0, 0, 0, 0))
    names, at = [], 0
    while at + 32 <= len(data):
        size, kind = struct.unpack("IH", data[at:at + 6])
        if kind != 16:
            break
        rest = data[at + 32:at + size]
        while len(rest) >= 4:
            n, k = struct.unpack("HH", rest[:4])
            if k == 3:
                names.append(rest[4:n - 1].decode())
            rest = rest[(n + 3) & ~3:] if n >= 4 else b""
        at += (size + 3) & ~3
    print("links", names)
    if names not in ([], ["lo"]):
        print("broke: links", names)
except OSError as e:
    print("links", e)
try:
    if [n for _, n in socket.if_nameindex()] not in ([], ["lo"]):
        print("broke: interfaces", socket.if_nameindex())
except OSError as e:
    print("interfaces", e)
print("end")
