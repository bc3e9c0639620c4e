# BL-040: asks for far more than there is, catches the refusal and ends politely
try:
    held = bytearray(2 << 30)
    for at in range(0, len(held), 4096):
        held[at] = 1
except MemoryError:
    raise SystemExit(1)
