# FS-14, FS-15: makes device nodes and opens every node that is there
import os, socket, stat, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
for folder in ("/workspace", "/tmp", "/dev", "/dev/shm", "/outputs", "/run"):
    for kind, major, minor in ((stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 1, 3), (stat.S_IFCHR, 5, 0), (stat.S_IFCHR, 10, 200),
                               (stat.S_IFCHR, 0, 0), (stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 7, 0), (stat.S_IFBLK, 254, 0)):
        path = "%s/node-%d-%d-%d" % (folder, kind, major, minor)
        try:
            os.mknod(path, 0o666 | kind, os.makedev(major, minor))
            print("made", path)
            os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            print("broke: opened", path)
        except OSError as e:
            print(path, e.strerror)
harmless = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}
for folder, _, names in os.walk("/"):
    if folder.startswith("/proc/"):
        continue
    for name in names:
        path = os.path.join(folder, name)
        try:
            info = os.lstat(path)
        except OSError:
            continue
        if not (stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode)):
            continue
        number = (os.major(info.st_rdev), os.minor(info.st_rdev))
        if stat.S_ISBLK(info.st_mode) or (number not in harmless and not path.startswith("/dev/pts/")):
            print("broke: node", path, number)
for name in ("mem", "kmem", "port", "kmsg", "kvm", "fuse", "loop-control", "loop0", "net/tun", "vsock", "vhost-vsock", "vhost-net", "uinput",
             "snd/timer", "dri/card0", "nvidia0", "sda", "vda", "nvme0n1", "mapper/control", "console", "tty0", "tty1", "hpet", "rtc0",
             "userfaultfd", "cuse", "autofs", "btrfs-control", "vfio/vfio", "pts/0"):
    try:
        os.open("/dev/" + name, os.O_RDONLY | os.O_NONBLOCK)
        print("broke: opened", name)
    except OSError as e:
        print(name, e.strerror)
print("end")
