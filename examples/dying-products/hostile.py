"""What a hostile program would try, for the demonstration: secrets, the network, the kernel, then all of the memory.

Arguments are further files to try to read. Says for each attempt what came of it. Refuses to run outside a sandbox.
"""

import ctypes
import os
import signal
import socket
import sys

through = 0


def refuse_outside():
    """Stops unless this is certainly a sandbox: what follows is not to be tried on a machine that matters."""
    inside = (
        socket.gethostname() == "sandbox"
        and os.path.isdir("/workspace")
        and os.path.isdir("/inputs")
        and not os.path.exists("/home")
        and not os.path.exists("/root")
        and not os.path.exists("/boot")
    )
    if not inside:
        sys.exit("hostile.py: this does not look like a sandbox; nothing was tried")


def attempt(what, action):
    """Tries something in a child, since the fence may end whoever tries it."""
    global through
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            got = f"GOT THROUGH: {action()}"
        except OSError as e:
            got = f"refused: {e.strerror or e}"
        except Exception as e:  # whatever it is, the other attempts go on
            got = f"refused: {type(e).__name__}"
        os.write(write, got.encode()[:400])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        text = answer.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        text = f"refused: ended by {signal.Signals(os.WTERMSIG(status)).name}"
    through += text.startswith("GOT")
    print(f"  {what:<44}{text}", flush=True)


def read(path):
    with open(path, "rb") as file:
        data = file.read(4096)
    if not data:
        raise OSError("nothing in it")
    return f"{len(data)} bytes"


def first_key():
    folder = os.path.expanduser("~/.ssh")
    return os.listdir(folder)


def connect(host, port):
    with socket.create_connection((host, port), timeout=2):
        return "connected"


def call(name, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "the kernel agreed"


def files():
    print("reading what is not its own:")
    attempt("/etc/shadow", lambda: read("/etc/shadow"))
    attempt("~/.ssh", first_key)
    attempt("/root", lambda: os.listdir("/root"))
    attempt("/proc/1/environ", lambda: read("/proc/1/environ"))
    attempt("/run/docker.sock", lambda: os.stat("/run/docker.sock"))
    for path in sys.argv[1:]:
        attempt(path if len(path) < 43 else "…" + path[-41:], lambda: read(path))
    attempt("writing /usr/bin/python3", lambda: open("/usr/bin/python3", "ab"))


def network():
    print("sending it away:")
    attempt("127.0.0.1:22 (this machine)", lambda: connect("127.0.0.1", 22))
    attempt("198.51.100.10:443 (a server)", lambda: connect("198.51.100.10", 443))
    attempt("169.254.169.254:80 (cloud credentials)", lambda: connect("169.254.169.254", 80))
    attempt("asking DNS for example.com", lambda: socket.getaddrinfo("example.com", 443))


def kernel():
    print("getting out:")
    attempt("ptrace(ATTACH, 1)", lambda: call("ptrace", 16, 1, 0, 0))
    attempt("mount(tmpfs, /tmp)", lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, 0))
    attempt("unshare(NEWUSER)", lambda: call("unshare", 0x10000000))
    attempt("chroot(/)", lambda: call("chroot", b"/"))
    attempt("setuid(0)", lambda: os.setuid(0) if os.getuid() else call("setgroups", 0, None))


def memory():
    print("eating all of the memory:", flush=True)
    eaten = []
    while True:
        eaten.append(bytearray(b"\xff") * (16 << 20))
        print(f"  {16 * len(eaten)} MiB", flush=True)


if __name__ == "__main__":
    refuse_outside()
    files()
    network()
    kernel()
    print(f"attempts that got through: {through}", flush=True)
    memory()
