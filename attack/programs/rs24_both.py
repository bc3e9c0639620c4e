# RS-24, BL-066, BL-081: fills one stream, then the other, then both in turn
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)

sys.stderr.write("e" * (1 << 20))
sys.stdout.write("o" * (1 << 20))
for _ in range(64):
    os.write(2, b"e" * 16384)
    os.write(1, b"o" * 16384)
