# OU-21: puts what matters at the very start and the very end of much noise; arguments: a mark, the bytes of noise
import os, sys

mark, amount = sys.argv[1], int(sys.argv[2])
os.write(1, ("first " + mark + "\n").encode())
block = b"noise [9 bytes left out]\n" * 2621
left = amount
while left > 0:
    left -= os.write(1, block[:left])
os.write(1, ("\nlast " + mark).encode())
