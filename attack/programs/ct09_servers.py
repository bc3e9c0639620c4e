# CT-09: everyday servers and their clients: threads, asyncio, managers, node, many at once and many in turn
import asyncio, http.server, shutil, socket, socketserver, subprocess, threading, urllib.request
import multiprocessing.managers as managers


def get(port):
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20).read()


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"page" * 100000)

    def log_message(self, *args):
        pass


def threaded():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pages = []
    clients = [threading.Thread(target=lambda: pages.append(len(get(server.server_port)))) for _ in range(20)]
    [c.start() for c in clients]
    [c.join() for c in clients]
    server.shutdown()
    return pages.count(400000)


async def many_clients():
    async def echo(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    async def ask(n):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"%d\n" % n)
        line = await reader.readline()
        writer.close()
        return int(line)

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    return sum(await asyncio.gather(*(ask(n) for n in range(90))))


def many_servers():
    servers = [socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) for _ in range(60)]
    for s in servers:
        socket.create_connection(s.server_address).close()
        s.handle_request()
        s.server_close()
    for _ in range(100):
        socket.create_server(("", 0), backlog=128).close()
    return len(servers)


def manager():
    with managers.SyncManager() as m:
        d = m.dict(a=1)
        local = d["a"]
    with managers.SyncManager(("127.0.0.1", 0), b"key") as m:
        return local + m.list([1, 2])[1]


def node():
    if not shutil.which("node"):
        return "page"
    script = """const h = require("http"), s = h.createServer((q, r) => r.end("page")).listen(0, () =>
      h.get({port: s.address().port}, r => { r.on("data", d => process.stdout.write(d)); r.on("end", () => s.close()) }))"""
    return subprocess.run(["node", "-e", script], capture_output=True, text=True, timeout=25).stdout


if __name__ == "__main__":
    print(threaded(), asyncio.run(many_clients()), many_servers(), manager(), node())
