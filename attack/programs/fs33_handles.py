# FS-33: opens files by handle; the arguments are call numbers, name=number
import ctypes, os, socket, struct, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
call = dict((a.split("=")[0], int(a.split("=")[1])) for a in sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
mount = ctypes.c_int()
got = libc.syscall(call["name_to_handle_at"], -100, b"/usr", handle, ctypes.byref(mount), 0)
print("name to handle", got, os.strerror(ctypes.get_errno()))
root = os.open("/usr", os.O_RDONLY)
guesses = [handle] + [ctypes.create_string_buffer(struct.pack("IiII", 8, 1, inode, 0) + bytes(120)) for inode in (2, 11, 12, 13, 128)]
for place in (root, -100, 0, 3):
    for h in guesses:
        if libc.syscall(call["open_by_handle_at"], place, h, 0) >= 0:
            print("broke: opened by handle")
        else:
            print(os.strerror(ctypes.get_errno()))
print("end")
