# FS-41, KS-28: writes to the kernel's control files the values they have
import os, socket, stat, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)


def attempt(path, value):
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError as e:
        print(path, e.strerror)
        return
    if stat.S_ISCHR(os.fstat(fd).st_mode) and os.fstat(fd).st_rdev == os.makedev(1, 3):
        print(path, "is masked by the null device")
        return
    try:
        os.write(fd, value)
        print("broke: wrote", path)
    except OSError as e:
        print(path, "opens, but", e.strerror)


for path in ("kernel/core_pattern", "kernel/modprobe", "kernel/hotplug", "vm/overcommit_memory", "vm/drop_caches", "kernel/panic",
             "fs/binfmt_misc/register", "kernel/hostname", "kernel/shmmax", "net/ipv4/ip_forward", "kernel/ns_last_pid",
             "user/max_user_namespaces", "fs/file-max", "kernel/randomize_va_space"):
    full = "/proc/sys/" + path
    try:
        value = open(full, "rb").read()
    except OSError:
        value = b"0"
    attempt(full, value)
attempt("/proc/sysrq-trigger", b"h")
for path in ("/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state", "/proc/1/oom_score_adj",
             "/proc/1/mem", "/proc/1/clear_refs", "/proc/self/attr/current", "/proc/self/attr/exec", "/proc/self/uid_map",
             "/proc/self/gid_map", "/proc/self/setgroups", "/proc/1/uid_map", "/proc/kcore", "/proc/acpi/wakeup", "/proc/irq/0/smp_affinity",
             "/proc/timer_list", "/proc/scsi/scsi"):
    attempt(path, b"0 0 1")
for folder in ("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/kernel/config", "/sys/firmware/efi/efivars",
               "/sys/fs/fuse", "/sys/fs/bpf", "/sys/fs/selinux", "/sys/fs/cgroup", "/sys/class/net", "/sys/block", "/boot", "/lib/modules",
               "/debugfs", "/cgroup"):
    try:
        print("broke: listed", folder, os.listdir(folder))
    except OSError as e:
        print(folder, e.strerror)
print("end")
