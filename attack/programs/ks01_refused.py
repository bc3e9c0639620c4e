# KS-01, KS-06, KS-07, KS-09, KS-10, KS-12, KS-14, KS-21, KS-22, NT-15: makes calls that must be refused; arguments: name=number
import ctypes, os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
libc = ctypes.CDLL(None, use_errno=True)
zero = ctypes.create_string_buffer(512)
here = b"/workspace"
arguments = {
    "mount": (b"none", here, b"tmpfs", 0, 0), "umount2": (here, 2), "pivot_root": (here, here), "chroot": (here,),
    "open_tree": (-100, here, 1), "fsopen": (b"tmpfs", 0), "fspick": (-100, here, 0), "mount_setattr": (-100, here, 0, zero, 32),
    "move_mount": (-100, here, -100, b"/tmp", 0), "fsconfig": (0, 0, 0, 0, 0), "fsmount": (0, 0, 0),
    "bpf": (0, zero, 128), "perf_event_open": (zero, 0, -1, -1, 0), "userfaultfd": (1,), "add_key": (b"user", b"k", b"v", 1, -3),
    "request_key": (b"user", b"k", 0, -3), "keyctl": (0, -3, 1), "io_uring_setup": (4, zero), "io_uring_enter": (0, 0, 0, 0, 0, 0),
    "io_uring_register": (0, 0, 0, 0), "reboot": (0, 0, 0, 0), "syslog": (10, 0, 0), "acct": (0,), "swapon": (here, 0), "swapoff": (here,),
    "sethostname": (b"x", 1), "setdomainname": (b"x", 1), "settimeofday": (0, zero), "clock_settime": (0, zero), "adjtimex": (zero,),
    "clock_adjtime": (0, zero), "mbind": (0, 0, 0, 0, 0, 0), "set_mempolicy": (0, 0, 0), "migrate_pages": (1, 8, zero, zero),
    "move_pages": (1, 0, 0, 0, 0, 0), "fanotify_init": (0, 0), "fanotify_mark": (0, 1, 1, -100, here), "quotactl": (0, 0, 0, 0),
    "personality": (0x0400000,), "init_module": (zero, 0, b""), "finit_module": (0, b"", 0), "delete_module": (b"loop", 0),
    "kexec_load": (0, 0, 0, 0), "kexec_file_load": (0, 0, 0, 0, 0), "vhangup": (), "lookup_dcookie": (0, 0, 0), "iopl": (3,),
    "ioperm": (0, 1, 1), "modify_ldt": (0, zero, 16), "unshare": (0x20000,), "setns": (0, 0), "clone3": (zero, 88), "memfd_secret": (0,),
    "process_madvise": (0, 0, 0, 0, 0), "name_to_handle_at": None,
}
if os.fork() == 0:
    for item in sys.argv[1:]:
        name, number = item.split("=")
        args = arguments.get(name, (0, 0, 0, 0, 0, 0))
        if args is None:
            continue
        got = libc.syscall(int(number), *args)
        if got >= 0:
            print("broke:", name, "gave", got, flush=True)
        else:
            print(name, os.strerror(ctypes.get_errno()), flush=True)
    os._exit(0)
_, status = os.wait()
print("child ended with", status)
print("end" if status == 0 else "early")
