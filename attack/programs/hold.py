# KS-23 and others: tries what its arguments name, keeps whatever it got, and waits to be looked at from outside. An argument is a
# word, or name=number: a call to be made.
import ctypes, os, signal, socket, struct, subprocess, sys, threading, time

if socket.gethostname() != "sandbox":
    sys.exit(99)
libc = ctypes.CDLL(None, use_errno=True)
zero = ctypes.create_string_buffer(512)
kept = []


def attempt(what):
    try:
        kept.append(what())
    except (OSError, ValueError, OverflowError) as e:
        print(e)


def program(action):
    code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, action))
    kept.append(code)
    return ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(code)))


def namespaces(number):
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        for value in (flag, flag | 0x10000000):
            if os.fork() == 0:
                print("unshare", hex(value), libc.syscall(number, value), os.strerror(ctypes.get_errno()), flush=True)
                signal.pause()


def mounts(number):
    os.makedirs("/workspace/m", exist_ok=True)
    for kind in (b"tmpfs", b"proc", b"sysfs", b"cgroup2", b"mqueue"):
        print("mount", kind, libc.syscall(number, b"glovebox-attack", b"/workspace/m", kind, 0, 0), os.strerror(ctypes.get_errno()))
    for place in (b"/", b"/usr", b"/proc", b"/inputs", b"/code"):  # MS_REMOUNT | MS_BIND, without MS_RDONLY
        print("remount", place, libc.syscall(number, 0, place, 0, 0x1020, 0), os.strerror(ctypes.get_errno()))


def identity():
    for what in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0])):
        attempt(what)
    for call in (lambda: libc.prctl(38, 0, 0, 0, 0), lambda: libc.prctl(47, 2, 21, 0, 0), lambda: libc.prctl(8, 1, 0, 0, 0)):
        print("prctl", call())
    header, data = struct.pack("Ii", 0x20080522, 0), struct.pack("IIIIII", *(6 * [0xFFFFFFFF]))
    print("capset", libc.capset(header, data), os.strerror(ctypes.get_errno()))


def setuid():
    import shutil

    for n, name in enumerate(("/usr/bin/sleep", "/bin/sleep")):
        copy = "/workspace/sleep%d" % n
        attempt(lambda: shutil.copy(name, copy))
        attempt(lambda: os.chmod(copy, 0o6755))
        attempt(lambda: os.setxattr(copy, "security.capability", bytes.fromhex("0100000200000020000000000000000000000000")))
        attempt(lambda: subprocess.Popen([copy, "600"]))


def priority():
    for policy in (os.SCHED_FIFO, os.SCHED_RR):
        attempt(lambda: os.sched_setscheduler(0, policy, os.sched_param(1)))
    attempt(lambda: os.nice(-20))
    attempt(lambda: os.sched_setaffinity(0, range(0, 1024)))
    attempt(lambda: open("/proc/self/oom_score_adj", "w").write("-1000"))
    import resource

    for name in ("NOFILE", "NPROC", "MEMLOCK", "NICE", "RTPRIO"):
        soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
        attempt(lambda: resource.setrlimit(getattr(resource, "RLIMIT_" + name), (soft, hard + 1)))
        attempt(lambda: resource.setrlimit(getattr(resource, "RLIMIT_" + name), (-1, -1)))


def groups():
    for folder, folders, names in os.walk("/"):
        if folder == "/":
            folders[:] = [f for f in folders if f not in ("proc", "usr")]
        for name in names:
            if name in ("cgroup.procs", "tasks"):
                attempt(lambda: open(os.path.join(folder, name), "w").write("0"))


def raw():
    for family, kind, protocol in ((2, 3, 1), (2, 3, 6), (2, 3, 255), (10, 3, 58), (17, 3, 0x300), (17, 2, 0x300), (2, 2, 1), (10, 2, 58)):
        attempt(lambda: socket.socket(family, kind, protocol))


def families():
    for family in range(64):
        if family not in (1, 2, 10):
            for kind in (1, 2, 3, 5):
                for protocol in range(24 if family == 16 else 1):
                    attempt(lambda: socket.socket(family, kind, protocol))


def devices():
    import stat

    for kind, major, minor in ((stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 1, 3), (stat.S_IFCHR, 10, 229), (stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 254, 0)):
        path = "/workspace/node-%d-%d" % (major, minor)
        attempt(lambda: os.mknod(path, 0o666 | kind, os.makedev(major, minor)))
        attempt(lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    for name in ("mem", "kmem", "port", "kmsg", "kvm", "fuse", "loop-control", "loop0", "net/tun", "vsock", "vhost-net", "uinput", "snd/timer",
                 "dri/card0", "nvidia0", "sda", "vda", "nvme0n1", "mapper/control", "hpet", "userfaultfd", "cuse", "vfio/vfio"):
        attempt(lambda: os.open("/dev/" + name, os.O_RDONLY | os.O_NONBLOCK))


def control_files():
    for path in ("kernel/core_pattern", "kernel/modprobe", "kernel/hotplug", "vm/drop_caches", "fs/binfmt_misc/register", "kernel/hostname",
                 "net/ipv4/ip_forward", "user/max_user_namespaces", "kernel/randomize_va_space"):
        attempt(lambda: os.open("/proc/sys/" + path, os.O_WRONLY))
    for path in ("/proc/sysrq-trigger", "/proc/1/oom_score_adj", "/proc/1/mem", "/proc/kcore", "/proc/kmsg", "/proc/acpi/wakeup",
                 "/proc/irq/default_smp_affinity", "/proc/timer_list", "/sys/kernel/uevent_helper", "/sys/power/state",
                 "/sys/kernel/mm/transparent_hugepage/enabled"):
        attempt(lambda: os.open(path, os.O_WRONLY))


def deaf():
    for n in range(1, 65):
        attempt(lambda: signal.signal(n, signal.SIG_IGN))
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    for _ in range(4):
        if os.fork() == 0:
            os.setsid()
            while True:
                time.sleep(600)


calls = {
    "io_uring_setup": (4, zero), "userfaultfd": (1,), "userfaultfd_user": (0x80001,), "perf_event_open": (zero, 0, -1, -1, 0),
    "fanotify_init": (0x200, 0), "fsopen": (b"tmpfs", 0), "open_tree": (-100, b"/workspace", 1), "fspick": (-100, b"/workspace", 0),
    "memfd_secret": (0,), "personality": (0x0400000,),
}
words = {"identity": identity, "setuid": setuid, "priority": priority, "groups": groups, "raw": raw, "families": families,
         "devices": devices, "control_files": control_files, "deaf": deaf}
for argument in sys.argv[1:]:
    name, _, number = argument.partition("=")
    if name == "namespaces":
        namespaces(int(number))
    elif name == "mounts":
        mounts(int(number))
    elif name == "own_filter":  # adds one that allows everything: what was closed must stay closed
        print("filter", libc.syscall(int(number), 1, 0, program(0x7FFF0000)))
    elif name == "notify":
        kept.append(libc.syscall(int(number), 1, 8, program(0x7FFF0000)))
    elif name == "bpf":  # a map of one entry, as an ordinary user may make
        kept.append(libc.syscall(int(number), 0, ctypes.create_string_buffer(struct.pack("IIIII", 2, 4, 4, 1, 0) + bytes(108)), 128))
    elif name in calls:
        got = libc.syscall(int(number), *calls[name])
        print(name, got, os.strerror(ctypes.get_errno()))
    else:
        words[name]()
threading.Thread(target=lambda: time.sleep(600), daemon=True).start()
if os.fork() == 0:
    signal.pause()
print("held", flush=True)
time.sleep(600)
