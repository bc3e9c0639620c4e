# RS-47, RS-39: sets time-outs, limits and endings of its own that look like those of the run; the argument says which
import os, resource, signal, socket, sys, time

if socket.gethostname() != "sandbox":
    sys.exit(99)

how = sys.argv[1]
if how == "alarm":
    signal.alarm(1)
    time.sleep(9)
elif how == "cpu":
    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
    while True:
        pass
elif how == "124":
    print("the run took longer than its wall clock limit", file=sys.stderr)
    sys.exit(124)
elif how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif how == "137":
    sys.exit(137)
elif how == "catch":  # it notices the time coming and tries to end well
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGXCPU, lambda *_: os._exit(0))
    time.sleep(9)
elif how == "memory":
    resource.setrlimit(resource.RLIMIT_AS, (64 << 20, 64 << 20))
    held = b"x" * (256 << 20)
