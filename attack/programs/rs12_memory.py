# RS-12, RS-17, BL-036 to BL-049: takes memory for ever, in the form that the argument names
import ctypes, mmap, os, sys, time

if not os.environ.get("HARNESS_OK"):
    sys.exit(99)
how = sys.argv[1]


def bomb():
    held = []
    while True:
        held.append(bytearray(b"x" * (1 << 20)))


if how == "alone":
    bomb()
elif how == "child":  # the leader waits and would end well
    pid = os.fork()
    if pid == 0:
        bomb()
    os.waitpid(pid, 0)
    print("a child is gone, going on", flush=True)
elif how == "many":  # each below the limit
    for _ in range(40):
        if os.fork() == 0:
            held = b"x" * (8 << 20)
            time.sleep(60)
    time.sleep(60)
elif how == "spared":  # it asks to be the last to be killed
    for path in ("/proc/self/oom_score_adj", "/proc/1/oom_score_adj"):
        try:
            open(path, "w").write("-1000")
            print("broke: wrote", path, flush=True)
        except OSError as e:
            print(path, e.strerror, flush=True)
    bomb()
elif how == "shared":
    for n in range(100):
        m = mmap.mmap(-1, 8 << 20)
        m.write(b"x" * (8 << 20))
        globals()["m%d" % n] = m
elif how == "memfd":
    fd = os.memfd_create("x")
    while True:
        os.write(fd, b"x" * (1 << 20))
elif how == "pipes":
    import socket
    held = []
    while True:
        held.append(socket.socketpair())
        held[-1][0].setblocking(False)
        try:
            while True:
                held[-1][0].send(b"x" * 65536)
        except BlockingIOError:
            pass
elif how == "once":
    try:
        held = b"x" * (3 << 29)
    except MemoryError:
        sys.exit(1)
    print(len(held))
elif how == "absurd":
    try:
        held = "a" * (1 << 44)
    except MemoryError:
        print("MemoryError")
        sys.exit(1)
