# RS-01, BL-013: spins for ever, deaf to every polite signal
import signal, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)

for s in range(1, 32):
    try:
        signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
