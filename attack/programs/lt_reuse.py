# LT-01, LT-02, LT-04, LT-05: tells of itself all that another run could have changed, then changes all that it can; arguments: mark, end
import ctypes, gc, json, locale, os, random, resource, signal, socket, subprocess, sys, threading, time, warnings
import builtins, collections, csv, datetime, decimal, functools, re, statistics, sqlite3

if socket.gethostname() != "sandbox":
    sys.exit(99)
mark, end = sys.argv[1:3]
libc = ctypes.CDLL(None, use_errno=True)
writable = ("/workspace", "/tmp", "/var/tmp", "/dev/shm", "/outputs", "/run", "/", "/etc", "/usr/lib/python3", "/inputs", "/code", "/dev/mqueue")
modules = (json, random, re, csv, datetime, statistics, sqlite3, collections, functools, os, socket, subprocess, threading, builtins)


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as e:
        return e.strerror


def state():
    yield "files", [sorted(os.listdir(d)) for d in writable[:5] + ("/inputs",)]
    yield "code", os.listdir("/code")
    yield "processes", [int(p) - os.getpid() for p in os.listdir("/proc") if p.isdigit()], threading.active_count(), os.getppid()
    yield "descriptors", [(n, os.readlink("/proc/self/fd/" + n).split(":")[0]) for n in ("0", "1", "2")], len(os.listdir("/proc/self/fd"))
    yield "ipc", [libc.shmget(4711, 0, 0), libc.semget(4711, 0, 0), libc.msgget(4711, 0)]
    s = socket.socket(socket.AF_UNIX)
    yield "abstract", s.connect_ex("\0lt-reuse"), socket.socket().connect_ex(("127.0.0.1", 28474))
    yield "unix", read("/proc/net/unix").count("\n")
    yield "modules", [name for m in modules for name in vars(m) if name.startswith("lt_")], json.dumps({"a": 1}), len("ab"), str(1)
    yield "sys", sys.getrecursionlimit(), sys.getswitchinterval(), sys.path, sys.flags, sys.argv[0], sys.gettrace(), gc.isenabled(), gc.get_threshold()
    yield "loaded", [n for n in sys.modules if n.startswith("lt_")], sys.meta_path.__len__(), sys.path_hooks.__len__(), warnings.filters
    yield "environment", dict(os.environ)
    yield "signals", [signal.getsignal(n) for n in range(1, 65) if n not in (32, 33)], signal.pthread_sigmask(0, []), signal.getitimer(0)
    yield "kernel signals", [line for line in read("/proc/self/status").split("\n") if line[:3] in ("Sig", "Shd", "Cap", "NoN", "Sec", "Uma")
                             and not line.startswith(("SigQ", "Seccomp_filters"))]
    yield "limits", [resource.getrlimit(n) for n in range(16)], read("/proc/self/limits").split()
    yield "priority", os.nice(0), os.sched_getscheduler(0), read("/proc/self/oom_score_adj"), read("/proc/self/oom_adj")
    yield "thread", len(os.sched_getaffinity(0)), read("/proc/self/timerslack_ns"), libc.prctl(21), libc.prctl(3), read("/proc/self/coredump_filter")
    yield "place", os.getcwd(), os.umask(0o22), os.getuid(), os.getgid(), os.getgroups(), os.getpgid(0) - os.getpid(), os.getsid(0) - os.getpid(), os.uname()[1]
    yield "others", locale.setlocale(locale.LC_ALL), decimal.getcontext().prec, time.tzname, read("/proc/sys/kernel/shmmax"), sys.stdout.encoding
    yield "mounts", sorted(line.split()[4] for line in open("/proc/self/mountinfo")), read("/proc/self/cgroup"), read("/proc/self/personality"), read("/proc/self/comm")
    yield "prctl", [libc.prctl(n, 0, 0, 0, 0) for n in (3, 7, 16, 23, 27, 30, 38, 42)], number(2), number(37)
    for path in ("/proc/self", "/proc/self/fd/1", "/proc/self/mem", "/proc/self/environ", "/proc/self/ns/user", "/code", "/workspace", "/inputs"):
        at = os.stat(path)
        yield path, oct(at.st_mode), at.st_uid, at.st_gid
    yield "streams", [(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.newlines, s.isatty(), s.fileno(), type(s.buffer).__name__,
                       s.buffer.raw.mode, s.buffer.raw.closefd, s is t) for s, t in
                      ((sys.stdin, sys.__stdin__), (sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__))]
    with open("/dev/stdout", "a") as again:
        print("again", file=again)
    yield "main", sorted(globals()), __name__, __file__, __spec__, __loader__ is not None, sys.orig_argv[2:3], sys.warnoptions, sys._xoptions
    yield "threads", threading.main_thread() is threading.current_thread(), threading.get_native_id() - os.getpid(), threading.main_thread().name
    yield "time", time.process_time() < 5, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, signal.set_wakeup_fd(-1), os.cpu_count()
    yield "input", sys.stdin.read(), os.fstat(0).st_rdev, sys.stdin.seekable()


def number(option):
    n = ctypes.c_int(-1)
    return libc.prctl(option, ctypes.byref(n)), n.value


for line in state():
    print(*line)
sys.stdout.flush()


def attempt(what):
    try:
        what()
    except BaseException:
        pass


def leave(folder):
    for name in ("sitecustomize.py", "json.py", ".bashrc", "left-" + mark):
        attempt(lambda: open(folder + "/" + name, "w").write("print('%s')" % mark))
    attempt(lambda: os.symlink("/", folder + "/link-" + mark))
    attempt(lambda: os.mkfifo(folder + "/pipe-" + mark))


for folder in writable:
    leave(folder)
libc.shmget(4711, 4096, 0o1777), libc.semget(4711, 1, 0o1777), libc.msgget(4711, 0o1777)
doors = [socket.socket(socket.AF_UNIX), socket.socket()]
attempt(lambda: (doors[0].bind("\0lt-reuse"), doors[0].listen()))
attempt(lambda: (doors[1].bind(("127.0.0.1", 28474)), doors[1].listen()))
for module in modules:
    setattr(module, "lt_" + mark, mark)
json.dumps = lambda *a, **k: mark
builtins.len = lambda a: 7
sys.modules["lt_" + mark] = json
sys.path.insert(0, "/tmp")
sys.setrecursionlimit(77)
gc.disable()
os.environ["LT_MARK"] = mark
libc.setenv(b"LT_LIBC", mark.encode(), 1)
decimal.getcontext().prec = 3
warnings.simplefilter("ignore")
for n in range(1, 65):
    attempt(lambda: signal.signal(n, signal.SIG_IGN))
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
for n in range(16):
    attempt(lambda: resource.setrlimit(n, (1 << 20, 1 << 22)) if n != resource.RLIMIT_AS else None)
attempt(lambda: os.nice(19))
attempt(lambda: os.sched_setaffinity(0, [0]))
attempt(lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)))
attempt(lambda: open("/proc/self/oom_score_adj", "w").write("1000"))
attempt(lambda: open("/proc/self/coredump_filter", "w").write("0x7f"))
attempt(lambda: socket.sethostname(mark))
attempt(lambda: open("/proc/sys/kernel/shmmax", "w").write("1"))
attempt(lambda: open("/proc/sys/kernel/hostname", "w").write(mark))
libc.prctl(29, 77777), libc.prctl(15, b"lt-" + mark.encode()[:9]), libc.prctl(4, 0), libc.prctl(36, 1)
libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, 0)
os.umask(0)
# Whoever else can be reached: the process that this is a copy of, its init, its group and session, everybody.
for pid in (0, 1, os.getppid(), -1, -os.getpgid(0)):
    attempt(lambda: os.kill(pid, 0 if pid in (0, -os.getpgid(0)) else signal.SIGUSR1))
for pid in (0, 1, 2, 3, 4, os.getppid()):
    for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
        if pid != os.getpid():
            libc.ptrace(request, pid, 0, 0)
    attempt(lambda: os.pidfd_open(pid))
for n in range(3, 64):  # where its template's channel was
    attempt(lambda: os.write(n, b"fork\x000\x000\x000\x00\x00"))
for how in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for n in (0, 1, 2) if how else ():
                os.close(n)
            time.sleep(600)
        os._exit(0)
threading.Thread(target=lambda: time.sleep(600), daemon=True).start()
if end == "kill":
    if os.fork() == 0:
        os.kill(-1, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
elif end == "abort":
    libc.abort()
elif end == "exit":
    os._exit(0)
