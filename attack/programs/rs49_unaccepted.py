# RS-49: fills connections that nobody accepts, up to 256 MiB, and holds them; arguments: processes, bytes sent to each, seconds
import os, resource, socket, sys, time

if os.environ.get("HARNESS_OK") != "1":
    sys.exit(9)

most, workers, piece, seconds = 256 << 20, int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def fill(share):
    listeners, sent, end = [], 0, time.monotonic() + 15
    try:
        while sent < share and time.monotonic() < end:
            family, host = ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1"))[len(listeners) % 2]
            s = socket.socket(family, socket.SOCK_STREAM)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            s.bind((host, 0))
            s.listen(4096)
            listeners.append(s)
            got = 0
            while sent < share:
                c = socket.socket(family, socket.SOCK_STREAM)
                c.setblocking(False)
                if c.connect_ex(s.getsockname()) not in (0, 115):
                    break
                time.sleep(0)
                try:
                    n = c.send(bytes(piece))
                except OSError:
                    break  # the queue is full
                finally:
                    c.close()
                got += 1
                sent += n
            if not got:
                break
    except OSError as e:
        print("refused:", e, flush=True)
    return listeners, sent


sys.stdout.reconfigure(line_buffering=True)
for _ in range(workers - 1):
    if os.fork() == 0:
        listeners, sent = fill(most // workers)
        time.sleep(60)
listeners, sent = fill(most // workers)
print("held", len(listeners), sent, flush=True)
time.sleep(seconds)
