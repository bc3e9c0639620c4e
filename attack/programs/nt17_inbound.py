# NT-17: listens on every address and waits for visitors; argument: port
import select, socket, sys, time

if socket.gethostname() != "sandbox":
    sys.exit(99)
doors = []
for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        s = socket.socket(family, kind)
        if family == socket.AF_INET6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            s.bind((address, int(sys.argv[1])))
            if kind == socket.SOCK_STREAM:
                s.listen()
            doors.append(s)
        except OSError as e:
            print(address, e)
print("listening", len(doors), flush=True)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    for s in select.select(doors, [], [], 0.1)[0]:
        print("broke: a visitor at", s.getsockname())
        end = 0
print("end")
