# RS-33: leaves children that nobody waits for, and orphans, until no more can be made
import os, sys

if not os.environ.get("HARNESS_OK"):
    sys.exit(99)
n = 0
for _ in range(5000):
    try:
        if os.fork() == 0:
            if n % 2:
                os.fork()
            os._exit(0)
        n += 1
    except OSError:
        break
print("made", n, flush=True)
os._exit(0)
