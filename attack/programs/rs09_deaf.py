# RS-09, BL-011: blocks and ignores every signal, in itself and in children in sessions of their own
import os, signal, socket, sys, time

if socket.gethostname() != "sandbox":
    sys.exit(99)

for n in range(4):
    if os.fork() == 0:
        os.setsid()
        break
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
for s in range(1, 65):
    try:
        signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    time.sleep(999)
