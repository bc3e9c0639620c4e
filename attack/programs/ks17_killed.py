# KS-17: makes a call by another numbering of the same machine, which ends it; the argument says by which
import ctypes, mmap, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)

if sys.argv[1] == "x32":
    ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 39))
else:  # the 32-bit entry: mov eax, 20; int 0x80; ret
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("broke: still there")
