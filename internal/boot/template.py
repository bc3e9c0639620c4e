import ctypes
import os
import signal
import sys

import _socket


# Of Linux on x86-64.
CLONE3, CLOSE_RANGE, PIDFD_CLONE = 435, 436, 0x1000
CAPSET, LANDLOCK_RESTRICT_SELF, SECCOMP = 126, 446, 317
WRITE, DUP3, EXECVEAT, PRCTL, RSEQ, RSEQ_SIGNATURE = 1, 292, 322, 157, 334, 0x53053053
VFORK = 0x100 | 0x4000  # CLONE_VM | CLONE_VFORK
CHILD_CLEARTID, CHILD_SETTID, INTO_CGROUP = 0x200000, 0x1000000, 0x200000000
NEW_NAMESPACES = 0x10000000 | 0x20000 | 0x20000000 | 0x40000000 | 0x8000000 | 0x4000000
NEW_CGROUP_NAMESPACE = 0x2000000

# Calls keep the interpreter's lock: whoever lets go of it in a copy would have to take it again.
system = ctypes.PyDLL(None, use_errno=True)


def check(result, step):
    if result == -1:
        raise OSError(ctypes.get_errno(), step)
    return result


def call(step, number, *args):
    words = [ctypes.c_void_p(a) if isinstance(a, int) else a for a in args]
    return check(system.syscall(ctypes.c_long(number), *words), step)


def prctl(step, *args):
    return check(system.prctl(*[ctypes.c_ulong(a) for a in args + (0,) * (5 - len(args))]), step)


# What a copy needs is laid out before: each object that a copy makes or takes in hand costs it a page.
no_caps_header = (ctypes.c_uint32 * 2)(0x20080522, 0)
no_caps = (ctypes.c_uint32 * 6)()
init_caps = (ctypes.c_uint32 * 6)()
set_no_caps = ctypes.c_long(CAPSET), ctypes.byref(no_caps_header), ctypes.byref(no_caps)
zero, bound = ctypes.c_ulong(0), ctypes.c_ulong(24)  # PR_CAPBSET_DROP
numbers = [ctypes.c_ulong(n) for n in range(64)]

# What package boot's machine code is told (copy_amd64.s): its error and where, the arguments of clone3 for process 1, then
# calls of eight words each.
HEAD, CALL, MOST = 13, 8, 64
orders = (ctypes.c_uint64 * (HEAD + MOST * CALL))()
program_args = (ctypes.c_uint64 * 11)()  # of clone3 for process 2
pidfd_of_init = ctypes.c_int(-1)
itself, nothing = ctypes.create_string_buffer(b"0"), ctypes.create_string_buffer(b"")
init_name, one_processor = ctypes.create_string_buffer(b"glovebox-init"), ctypes.create_string_buffer(b"GOMAXPROCS=1")
init_argv = (ctypes.c_void_p * 2)(ctypes.addressof(init_name), None)
init_env = (ctypes.c_void_p * 2)(ctypes.addressof(one_processor), None)
restart = None  # the call that registers a restartable sequence, if the C library has one


def load(code):
    """Put machine code where it can be called, and return the function: the interpreter's lock is kept."""
    size = ctypes.c_size_t(4096)
    map, protect = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                     ctypes.c_int, ctypes.c_long), ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p,
                                                                                     ctypes.c_size_t, ctypes.c_int)
    at = map(("mmap", system))(None, size, 3, 0x22, -1, 0)  # PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
    if not code or at is None or at == ctypes.c_void_p(-1).value:
        raise SystemExit("a template has no place for the code of copies")
    ctypes.memmove(at, code, len(code))
    check(protect(("mprotect", system))(at, size, 5), "load the code of copies")  # PROT_READ | PROT_EXEC
    return ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(at)


def find_thread():
    """Find where the C library keeps the number of its thread, so that a copy's is put there as by the library's own fork.

    And what it told the kernel of restartable sequences, which process 1 is without and so its child too.
    """
    global restart
    where = ctypes.c_void_p()
    check(system.prctl(ctypes.c_ulong(40), ctypes.byref(where), zero, zero, zero), "find the thread")  # PR_GET_TID_ADDRESS
    program_args[2] = where.value
    program_args[4] = orders[2 + 4] = signal.SIGCHLD
    orders[2 + 1] = ctypes.addressof(pidfd_of_init)
    try:
        offset, size = [kind.in_dll(system, name).value for kind, name in
                        ((ctypes.c_ssize_t, "__rseq_offset"), (ctypes.c_uint, "__rseq_size"))]
    except ValueError:
        return
    if size:
        thread = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("pthread_self", system))()
        restart = (ctypes.c_long(RSEQ), ctypes.c_void_p(thread + offset), ctypes.c_ulong(max(size, 32)), zero,
                   ctypes.c_ulong(RSEQ_SIGNATURE))


steps = []  # of the calls that are laid out
laid = None  # for how many control groups, and which capabilities


def lay(groups, caps):
    """Lay out the system calls of process 1: it bears the program's process, then becomes the sandbox's init.

    It is told the same each time, but for the numbers of descriptors, which are put in by aim.
    """
    global laid
    listed = [int(n) for n in caps.split()]
    capability_words(init_caps, listed)
    calls = [("join control groups", WRITE, 0, ctypes.addressof(itself), 1)] * groups  # which take this for whoever writes
    calls += [("make the program's process", CLONE3, ctypes.addressof(program_args), ctypes.sizeof(program_args)),
              # Kept over the execution of init: the new user namespace gave them all.
              ("keep capabilities", CAPSET, ctypes.addressof(no_caps_header), ctypes.addressof(init_caps))]
    calls += [("keep capabilities", PRCTL, 47, 2, n) for n in listed]  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE
    calls += [("connect streams", DUP3, old, new) for old, new in ((0, 1), (0, 2), (0, 3), (0, 4))]  # 0 is the null device
    # A Go program sleeps for 20 µs over and over while it does something, to look after itself. Init needs that less often.
    calls += [("close descriptors", CLOSE_RANGE, 5, 0xFFFFFFFF, 4),  # on execution
              ("sleep longer", PRCTL, 29, 500000),  # PR_SET_TIMERSLACK, in nanoseconds
              ("execute", EXECVEAT, 0, ctypes.addressof(nothing), ctypes.addressof(init_argv),
               ctypes.addressof(init_env), 0x1000)]  # AT_EMPTY_PATH
    if len(calls) > MOST:
        raise OSError(7, "read the order")
    steps[:] = [call[0] for call in calls]
    for n, call in enumerate(calls):
        orders[call_at(n):call_at(n + 1)] = call[1:] + (0,) * (CALL - len(call)) + (int(call[1] == CLONE3),)
    laid = groups, caps


def call_at(n):
    return HEAD + n * CALL


def aim(control, init, near, parents):
    """Put the numbers of descriptors into the calls that are laid out."""
    if control < 4 or init < 5 or near < 5:
        raise OSError(9, "read the order")  # they would be in each other's way
    for n, fd in enumerate(parents):
        orders[HEAD + n * CALL + 1] = fd
    last = HEAD + len(steps) * CALL + 1
    orders[last - CALL] = init
    orders[last - 4 * CALL], orders[last - 5 * CALL] = near, control


def clone(copy):
    """Have process 1 made, and by it process 2: 0 in the latter; else the number of process 1."""
    orders[0] = 0
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = copy(orders)
    if pid == 0:
        if restart is not None:
            system.syscall(*restart)
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(-pid, "make a copy")
    if orders[0]:
        os.close(pidfd_of_init.value)
        raise OSError(orders[0], steps[((orders[1] - ctypes.addressof(orders)) // 8 - HEAD) // CALL])
    return pid


def receive(sock, limit):
    """Take a message and its descriptors."""
    data, parts, _, _ = sock.recvmsg(limit, _socket.CMSG_SPACE(4 * 64))
    return data, descriptors(parts)


# The order at hand. It has the ids of a sandbox, and whatever is left of it in memory each later copy could read.
order = bytearray(4096)
no_order = bytes(4096)


def receive_order(channel):
    """Take an order, and forget that before."""
    order[:] = no_order
    size, parts, _, _ = channel.recvmsg_into([order], _socket.CMSG_SPACE(4 * 64))
    return size, descriptors(parts)


def descriptors(parts):
    fds = []
    for level, kind, text in parts:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds += [int.from_bytes(text[i:i + 4], sys.byteorder) for i in range(0, len(text) - len(text) % 4, 4)]
    return fds


def send(sock, text, fds=()):
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    sock.sendmsg([text], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if fds else [])


def anonymous():
    """The bytes of memory that this process has of its own."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def template(fd, modules, code):
    """Load modules, then make copies of this process as ordered on fd. It returns in each copy, which is then held."""
    os.set_inheritable(fd, False)
    sizes, had = [], 0
    for name in [None] + modules:
        if name:
            prepare([name])
        now = anonymous()
        sizes.append("%s %d\n" % (name or "python", max(0, now - had)))
        had = now
    keep_owner()
    find_thread()
    copy = load(code)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the kernel takes note of the dead by itself
    refuse_shared()
    forget_sqlite()
    if hasattr(system, "malloc_trim"):
        system.malloc_trim(ctypes.c_size_t(0))  # what is free is nothing to copy
    channel = _socket.socket(fileno=fd)
    send(channel, ("ready\n" + "".join(sizes)).encode())
    while True:
        size, fds = receive_order(channel)
        if not size:
            os._exit(0)
        try:
            mine = serve(channel, copy, size, fds)
        except OSError as error:
            send(channel, ("%s: errno %d" % (error.strerror or error.args[-1], error.errno)).encode())
            mine = None
        if mine is not None:
            channel.detach()
            return be(mine)
        for one in fds:
            os.close(one)


def refuse_shared():
    """End where copies would have something in common that can change, or less than all of this."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise SystemExit("a template with %d threads cannot be copied" % threads)
    with open("/proc/self/maps") as file:
        for line in file:
            rights = line.split()[1]
            if rights[1] == "w" and rights[3] == "s":
                raise SystemExit("a template with memory that it shares cannot be copied: " + line)


def forget_sqlite():
    """Have SQLite begin its random numbers anew when it needs the next: copies would all have the same."""
    module = sys.modules.get("_sqlite3")
    if module is not None:
        ctypes.CDLL(module.__file__).sqlite3_randomness(0, None)


def keep_owner():
    """Keep the starting user's id, where it is mapped, as the saved one: with it copies may join that user's control groups."""
    with open("/proc/self/uid_map") as file:
        if any(line.split()[0] == "1001" for line in file):
            os.setresuid(-1, -1, 1001)


def serve(channel, copy, size, fds):
    """Make one copy. In the copy it returns the socket at which the copy is fenced; in the template, nothing."""
    last = order.rfind(b"\0", 0, size)
    kind, single, unified, parents, caps = bytes(order[:last]).split(b"\0")
    ids = memoryview(order)[last + 1:size]
    if kind != b"fork":
        raise OSError(22, "read the order")
    control, init, rest = fds[0], fds[1], fds[2:]
    cradle = group = 0
    into = 0
    if unified == b"1":
        cradle, group, rest = rest[0], rest[1], rest[2:]
        into = INTO_CGROUP
    if len(rest) != int(parents):
        raise OSError(22, "read the order")
    orders[2], orders[2 + 10] = NEW_NAMESPACES | VFORK | PIDFD_CLONE | into, cradle
    program_args[0], program_args[10] = CHILD_CLEARTID | CHILD_SETTID | into, group
    if laid != (len(rest), caps):
        lay(len(rest), caps)
    near, far = socketpair()
    try:
        aim(control, init, near, rest)
        pid = clone(copy)
    except OSError:
        os.close(near)
        os.close(far)
        raise
    if pid == 0:
        return far  # its fence closes the rest
    os.close(near)
    os.close(far)
    pidfd = pidfd_of_init.value
    try:
        at = "/proc/%d/" % pid
        if single == b"1":
            write(at + "setgroups", b"deny", "forbid setgroups")
        write(at + "uid_map", ids, "map user ids")
        write(at + "gid_map", ids, "map group ids")
        send(channel, b"copy", [pidfd])
    except OSError:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(pidfd)


def write(path, text, step):
    try:
        with open(path, "wb", 0) as file:
            file.write(text)
    except OSError as error:
        raise OSError(error.errno, step)


def socketpair():
    a, b = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC, 0)
    return a.detach(), b.detach()


def capability_words(words, caps):
    for i in range(6):
        words[i] = 0
    for n in caps:
        for kind in range(3):
            words[n // 32 * 3 + kind] |= 1 << n % 32


def be(sock):
    """Be the program's process of a new sandbox: put the fence on, then wait for the program."""
    control = _socket.socket(fileno=sock)
    step = ["read the orders"]
    try:
        notes = fence(control, step)
    except OSError as error:
        send(control, b"E %d %s" % (error.errno or 5, step[0].encode()))
        os._exit(127)
    send(control, b"F %d\n" % notes)
    if control.recv(1) != b"G":
        os._exit(0)
    os.close(notes)
    sock = control.detach()
    if sock != 3:
        os.dup2(sock, 3, False)
        os.close(sock)
    reseed()
    rehearse()
    hold(3)


def rehearse():
    """Do once what is done for every program, so that its pages are this copy's own before somebody waits for it."""
    os.environb.update(dict(os.environb))
    with open(os.devnull, "rb") as file:
        exec(compile(file.read() + b"a = str(1)\n", "<string>", "exec", dont_inherit=True), {})
    renew_stdin()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
        print(end="", file=stream)
        stream.flush()
    plain()


def fence(control, step):
    """Take every right away, as the child of a fresh sandbox does and in that order (see package sandboxinit)."""
    data, fds = receive(control, 1 << 16)
    while len(data) < 8 or len(data) < 8 + int(data[:8]):
        more = control.recv(1 << 16)
        if not more:
            os._exit(0)
        data += more
    head, _, rest = data[8:].partition(b"\n")
    single, groups, landlock, last, dirs, filters = [int(word) for word in head.split()]
    dir, code = rest[:dirs], rest[dirs:dirs + filters]
    stdio, fds = fds[:3], fds[3:]
    ruleset, fds = (fds[0], fds[1:]) if landlock else (None, fds)
    if len(stdio) != 3 or len(fds) != groups or len(code) != filters:
        raise OSError(22, "read the orders")
    step[0] = "start session"
    os.setsid()
    step[0] = "reset signals"
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    step[0] = "join control groups"
    for fd in fds:
        os.write(fd, b"0")
        os.close(fd)
    step[0] = "make control group namespace"
    check(system.unshare(ctypes.c_int(NEW_CGROUP_NAMESPACE)), step[0])
    step[0] = "connect standard streams"
    for n in range(3):
        os.dup2(stdio[n], n)
        os.close(stdio[n])
    os.umask(0o022)
    drop_capabilities(single, last, step)
    step[0] = "enter working directory"
    os.chdir(dir)
    step[0] = "forbid new privileges"
    prctl(step[0], 38, 1)
    step[0] = "enforce Landlock"
    if ruleset is not None:
        call(step[0], LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
    step[0] = "close descriptors"
    keep = control.fileno()
    for low, high in ((3, keep - 1), (keep + 1, 0xFFFFFFFF)):
        if low <= high:
            call(step[0], CLOSE_RANGE, low, high, 0)
    step[0] = "install system call filter"
    return install(code, step[0])


def drop_capabilities(single, last, step):
    step[0] = "drop capability bounds"
    for n in numbers[:last + 1]:
        if system.prctl(bound, n, zero, zero, zero) != 0 and ctypes.get_errno() != 22:  # EINVAL: the kernel does not have it
            raise OSError(ctypes.get_errno(), step[0])
    prctl(step[0], 28, 0xEF)  # PR_SET_SECUREBITS: secureBits of package sandboxinit
    prctl(step[0], 47, 4)  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL
    if not single:
        step[0] = "take program id"
        os.setgroups([])
        os.setresgid(1000, 1000, 1000)
        os.setresuid(1000, 1000, 1000)
    step[0] = "drop capabilities"
    check(system.syscall(*set_no_caps), step[0])
    # A change of ids hides a process from itself; a program that was executed is not hidden.
    prctl(step[0], 4, 1)  # PR_SET_DUMPABLE


def install(code, step):
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
    program = Program(len(code) // 8, code)
    # SECCOMP_SET_MODE_FILTER with SECCOMP_FILTER_FLAG_NEW_LISTENER
    return call(step, SECCOMP, 1, 8, ctypes.byref(program))
