# What should be this run's own: random bytes, the seed of hashes, the layout of memory, ids outside, namespaces, a file's place.
import ctypes, os, time, uuid

libc = ctypes.CDLL(None)
libc.getauxval.restype = ctypes.c_ulong
at_random = ctypes.string_at(libc.getauxval(25), 16).hex()
outside = open("/proc/self/uid_map").read().split()[-2]
with open("/workspace/mine", "w") as f:
    device = os.fstat(f.fileno()).st_dev
time.sleep(1)  # both are alive while either looks
print(f"random={os.urandom(16).hex()}", f"at_random={at_random}", f"hash={hash('x')}", f"uuid={uuid.uuid4()}",
      f"ids={outside}", f"namespace={os.readlink('/proc/self/ns/pid')}-{device}", "end", sep="\n")
