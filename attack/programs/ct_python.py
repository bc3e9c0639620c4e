# CT-01, CT-02, CT-07, CT-08, BL-050, BL-128: everyday Python
import asyncio, concurrent.futures, ctypes, hashlib, json, mmap, multiprocessing as m, os, fcntl, socket, sqlite3, ssl, subprocess, tempfile, threading


def square(x):
    return x * x


async def answer():
    p = await asyncio.create_subprocess_exec("echo", "hi", stdout=subprocess.PIPE)
    return (await p.communicate())[0]


if __name__ == "__main__":
    ssl.create_default_context()
    assert json.loads(json.dumps({})) == {}
    assert asyncio.run(answer()) == b"hi\n"
    for how in ("fork", "spawn", "forkserver"):
        with m.get_context(how).Pool(2) as pool:
            assert pool.map(square, [1, 2]) == [1, 4], how
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        assert list(pool.map(square, range(100)))[99] == 9801
    threads = [threading.Thread(target=square, args=(n,)) for n in range(20)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    q = m.Queue()
    p = m.Process(target=q.put, args=(5,))
    p.start()
    assert q.get() == 5
    p.join()
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen()
    socket.create_connection(s.getsockname()).close()
    s = socket.socket(socket.AF_INET6)
    s.bind(("::1", 0))
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.bind(("127.0.0.1", 0))
    u.sendto(b"x", u.getsockname())
    assert u.recv(10) == b"x"
    x = socket.socket(socket.AF_UNIX)
    x.bind("/tmp/door")
    x.listen()
    socket.socket(socket.AF_UNIX).connect("/tmp/door")
    c = sqlite3.connect("a.db")
    assert c.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    c.execute("create table t (x)")
    c.execute("insert into t values (1)")
    c.commit()
    with tempfile.NamedTemporaryFile() as f:
        f.write(b"x" * 5000)
        f.flush()
        os.fsync(f.fileno())
        fcntl.flock(f, fcntl.LOCK_EX)
        with mmap.mmap(f.fileno(), 0) as mm:
            mm[0:1] = b"y"
    open("one", "w").write("1")
    os.rename("one", "two")
    os.link("two", "three")
    os.symlink("three", "four")
    assert open("four").read() == "1"
    try:
        import numpy

        assert (numpy.ones((200, 200)) @ numpy.ones((200, 200)))[0, 0] == 200
    except ImportError:
        print("not in image: numpy")
    print("end")
