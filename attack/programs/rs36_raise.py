# RS-36, RS-37: raises its own limits and priorities, then uses up descriptors
import ctypes, os, resource, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)


def attempt(name, what):
    try:
        what()
        print("broke:", name)
    except (OSError, ValueError, OverflowError) as e:
        print(name, e)


for limit in ("NOFILE", "NPROC", "CORE", "MEMLOCK", "NICE", "RTPRIO", "MSGQUEUE", "SIGPENDING"):
    number = getattr(resource, "RLIMIT_" + limit)
    soft, hard = resource.getrlimit(number)
    print(limit, soft, hard)
    if hard != resource.RLIM_INFINITY:
        try:
            resource.setrlimit(number, (soft, hard + 1))
        except (OSError, ValueError) as e:
            print("more", limit, e)
        if resource.getrlimit(number) != (soft, hard):
            print("broke: more", limit, resource.getrlimit(number))
for policy in (os.SCHED_FIFO, os.SCHED_RR):
    attempt("real time", lambda: os.sched_setscheduler(0, policy, os.sched_param(1)))
attempt("nice", lambda: os.nice(-20))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
before = os.sched_getaffinity(0)
try:
    os.sched_setaffinity(0, range(0, 1024))
except OSError as e:
    print(e)
if os.sched_getaffinity(0) != before:
    print("broke: processors", os.sched_getaffinity(0))
libc = ctypes.CDLL(None, use_errno=True)
held = []
try:
    while True:
        held.append(os.dup(1))
except OSError as e:
    pass
print("descriptors", len(held))
if len(held) > 1024:
    print("broke: descriptors", len(held))
for fd in held:
    os.close(fd)
print("end")
