# KS-03: asks for each new namespace, alone and with a user namespace, by unshare and by clone; arguments: name=number
import ctypes, os, signal, socket, subprocess, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
call = dict((a.split("=")[0], int(a.split("=")[1])) for a in sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
user = 0x10000000
flags = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": user, "pid": 0x20000000, "net": 0x40000000,
         "time": 0x80}
for name, flag in flags.items():
    for value in {flag, flag | user}:
        if libc.syscall(call["unshare"], value) == 0:
            print("broke: unshare", name)
        if flag == 0x80:
            continue  # clone takes this for a part of the signal's number
        for high in (0, 1 << 40):
            got = libc.syscall(call["clone"], ctypes.c_ulong(value | signal.SIGCHLD | high), 0, 0, 0, 0)
            if got == 0:
                os._exit(0)
            if got > 0:
                os.waitpid(got, 0)
                print("broke: clone", name)
for command in (["unshare", "-Ur", "id"], ["unshare", "-Urmpn", "true"], ["bwrap", "--bind", "/", "/", "true"]):
    try:
        if subprocess.run(command, capture_output=True).returncode == 0:
            print("broke:", command)
    except OSError as e:
        print(command, e)
links = {n: os.readlink("/proc/self/ns/" + n) for n in os.listdir("/proc/self/ns")}
print(links)
print("end")
