# NT-03, CR-11, CR-16: scans every port of its own loopback for anybody who answers
import selectors, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.1.2.3")):
    try:
        socket.create_connection((address, 1), 1)
    except ConnectionRefusedError:
        pass
    except OSError as e:
        print(address, e)
        continue
    for port in range(1, 65536):
        s = socket.socket(family)
        s.settimeout(1)
        # A connection to a port that is its own source connects to itself.
        try:
            s.bind((address if address != "0.0.0.0" else "127.0.0.1", 0))
            if s.getsockname()[1] != port and s.connect_ex((address, port)) == 0:
                print("broke: port", port, "at", address, s.recv(100))
        except OSError as e:
            print(address, port, e)
        s.close()
print("end")
