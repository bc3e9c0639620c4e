# NT-01, NT-03, NT-05, NT-07, NT-24: connects to the given addresses of the host, to the metadata services of clouds and outwards,
# with and without proxy settings; arguments: port, then addresses
import errno, os, socket, sys, time

if socket.gethostname() != "sandbox":
    sys.exit(99)
port = int(sys.argv[1])
away = [("198.51.100.10", 80), ("203.0.113.9", 443), ("8.8.8.8", 53), ("1.1.1.1", 443), ("2001:db8::10", 80), ("2606:4700:4700::1111", 443),
        ("169.254.169.254", 80), ("169.254.170.2", 80), ("fd00:ec2::254", 80), ("100.100.100.200", 80), ("169.254.0.23", 80),
        ("168.63.129.16", 80), ("10.0.0.1", 80), ("172.17.0.1", 2375), ("192.168.0.1", 80), ("224.0.0.1", 5353), ("255.255.255.255", 9),
        ("fe80::1", 80), ("ff02::1", 80)]
for name in list(os.environ):
    if name.lower().endswith("_proxy"):
        print("broke: proxy setting", name)
for address, p in away + [(a, port) for a in sys.argv[2:]]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        s = socket.socket(family, kind)
        s.settimeout(3)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        start = time.monotonic()
        try:
            if kind == socket.SOCK_STREAM:
                s.connect((address, p))
                s.sendall(b"GET / HTTP/1.0\r\nMetadata-Flavor: Google\r\nMetadata: true\r\nX-aws-ec2-metadata-token: x\r\n\r\n")
                print("broke: connected to", address, p, s.recv(200))
            else:
                s.sendto(b"hello", (address, p))
                if not address.startswith("127.") and address not in ("::1", "0.0.0.0", "::", "::ffff:127.0.0.1"):
                    print("broke: sent to", address, p)
        except OSError as e:
            print(address, p, e)
        if time.monotonic() - start > 2:
            print("broke: no quick answer for", address)
        s.close()
print("end")
