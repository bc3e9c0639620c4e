# RS-05, BL-052: forks idle children until no more can be made, and says how many
import os, signal, sys, time

if not os.environ.get("HARNESS_OK"):
    sys.exit(99)
n = 0
try:
    while n < 100000:
        if os.fork() == 0:
            signal.pause()
        n += 1
except OSError as e:
    print(e.strerror)
print("made", n, flush=True)
os._exit(int(sys.argv[1]))
