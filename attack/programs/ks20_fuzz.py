# KS-20: makes calls at random, in many processes; arguments: seed, seconds, processes, calls that few of them make
import ctypes, mmap, os, random, select, signal, socket, struct, sys, time

if socket.gethostname() != "sandbox":
    sys.exit(99)
seed, seconds, processes = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
deadly = {int(n) for n in sys.argv[4].split(",")}  # they end or stop their caller, or others

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.argtypes = [ctypes.c_long] * 7
counts = mmap.mmap(-1, 8 * processes)  # shared; what the workers write is taken for no more than a hint

PATHS = [b"/", b".", b"..", b"a", b"/workspace/a", b"/workspace/b", b"/tmp/c", b"/outputs/d", b"/dev/shm/e", b"/proc/self/mem",
         b"/proc/self/fd/3", b"/proc/1/root", b"/proc/1/mem", b"/proc/self/setgroups", b"/proc/self/oom_score_adj", b"/dev/null",
         b"/dev/zero", b"/dev/tty", b"/usr/bin/true", b"/code/main.py", b"/inputs", b"/sys", b"/proc/sys/kernel/core_pattern",
         b"user.x", b"security.capability", b"tmpfs", b"x" * 300]


def descriptors(rng):
    """Opens one of each kind that there is, from 3 on."""
    os.closerange(3, 64)
    kinds = [
        lambda: os.open("/workspace/a", os.O_RDWR | os.O_CREAT), lambda: os.open("/tmp", os.O_RDONLY | os.O_DIRECTORY),
        lambda: os.open("/tmp/b", os.O_RDWR | os.O_CREAT), lambda: os.open("/", os.O_PATH), lambda: os.open("/dev/zero", os.O_RDWR),
        lambda: os.open("/proc/self/mem", os.O_RDWR), lambda: os.open("/proc/self/fd", os.O_RDONLY),
        lambda: os.open("/usr/bin/true", os.O_RDONLY), lambda: os.open("/dev/urandom", os.O_RDWR), os.pipe,
        lambda: os.memfd_create("m", os.MFD_ALLOW_SEALING), lambda: os.pidfd_open(os.getpid()),
        lambda: select.epoll().fileno() and None, lambda: socket.socketpair()[0].detach(),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).detach(),
        lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).detach(),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).detach(), lambda: os.openpty(),
        lambda: libc.syscall(*EVENTFD), lambda: libc.syscall(*INOTIFY),
    ]
    rng.shuffle(kinds)
    for kind in kinds:
        try:
            kind()
        except (OSError, AttributeError):
            pass


EVENTFD, INOTIFY = (290, 1, 0, 0, 0, 0, 0), (294, 0, 0, 0, 0, 0, 0)


def memory(rng):
    """A place that calls write to and read from: noise, paths, and structures whose pointers lead back into it."""
    size = 1 << 16
    area = mmap.mmap(-1, size)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    area[:] = rng.randbytes(size)
    places = [base + rng.randrange(size) & ~7 for _ in range(40)] + [base + size - 4]
    for n, path in enumerate(PATHS):
        at = 4096 + 512 * n
        area[at:at + len(path) + 1] = path + b"\0"
        places.append(base + at)
    for n in range(16):  # an iovec, a msghdr, a timespec: pairs of a pointer or small number and a length
        at = 32768 + 256 * n
        for k in range(0, 256, 16):
            first = rng.choice([rng.choice(places), 0, 1, rng.randrange(1 << 16)])
            area[at + k:at + k + 16] = struct.pack("<QQ", first, rng.choice([0, 1, 8, 64, 4096, 1 << 20, 100_000_000]))
        places.append(base + at)
    return area, places


def worker(index, life):
    rng = random.Random((seed << 32) + life)
    wild = rng.random() < 0.1
    if rng.random() < 0.9:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
    descriptors(rng)
    area, places = memory(rng)
    odd = [0, 1, 2, 7, 8, 16, 4095, 4096, 65536, 0x7fffffff, 0x80000000, 0xffffffff, 1 << 47, 1 << 63, -1, -2, -100, -4096,
           0xffff888000000000, 0xffffffff81000000, 0xffffffffff600000, os.getpid(), os.getppid()]
    if not wild:
        odd.pop()
    signal.signal(signal.SIGALRM, lambda *_: None)  # what waits is woken
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    kinds = [lambda: rng.randrange(40), lambda: rng.choice(places), lambda: rng.choice(places), lambda: rng.choice(odd),
             lambda: 1 << rng.randrange(64), lambda: rng.getrandbits(12), lambda: rng.getrandbits(32), lambda: rng.getrandbits(64),
             lambda: rng.choice([1 << rng.randrange(32), 0]) | 1 << rng.randrange(16)]
    done = 0
    while True:
        far = rng.random()
        number = rng.randrange(601)
        if far < 0.00002:
            number |= 0x40000000  # another numbering, which ends the caller
        elif far < 0.01:
            number = rng.choice([-1, 1 << 31, 1 << 32 | number, rng.getrandbits(30), 1 << 63, 0x7fffffff])
        if number in deadly and not wild:
            continue
        arguments = [rng.choice(kinds)() for _ in range(6)]
        done += 1
        struct.pack_into("<Q", counts, 8 * index, done)
        libc.syscall(number, *arguments)


end, life, total, gone = time.monotonic() + seconds, 0, 0, 0
while time.monotonic() < end:
    at, until = {}, time.monotonic() + 0.5  # which worker a process is
    while time.monotonic() < until:
        for index in [i for i in range(processes) if i not in at.values()]:
            life += 1
            struct.pack_into("<Q", counts, 8 * index, 0)
            try:
                pid = os.fork()
            except OSError:  # the workers' copies of themselves are at the limit
                break
            if pid == 0:
                try:
                    worker(index, life)
                finally:
                    os._exit(3)
            at[pid] = index
        time.sleep(0.005)
        while True:
            try:
                pid = os.waitpid(-1, os.WNOHANG)[0]
            except ChildProcessError:
                break
            if pid == 0:
                break
            gone += 1
            if pid in at:
                total += struct.unpack_from("<Q", counts, 8 * at.pop(pid))[0]
    total += sum(struct.unpack_from("<Q", counts, 8 * index)[0] for index in at.values())
    try:
        os.kill(-1, signal.SIGKILL)  # the workers' copies too
        while True:
            os.waitpid(-1, 0)
            gone += 1
    except OSError:
        pass
print("\ncalls %d ends %d\nend" % (total, gone), flush=True)
