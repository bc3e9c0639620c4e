# What the programs of the laboratory have in common. Each says what it got; what is believed is what the internet saw.
import os, socket, ssl, struct, subprocess, sys, time

def context(check=True, alpn=None):
    c = ssl.create_default_context()
    if not check:
        c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    if alpn:
        c.set_alpn_protocols(alpn)
    return c

def dial(host, port, wait=15):
    return socket.create_connection((host, port), wait)

def secure(host, port=443, sni=None, alpn=None, check=True):
    return context(check, alpn).wrap_socket(dial(host, port), server_hostname=host if sni is None else sni or None)

def everything(s, wait=15):
    s.settimeout(wait)
    got = b''
    try:
        while len(got) < 1 << 20:
            b = s.recv(65536)
            if not b:
                break
            got += b
    except ConnectionResetError:
        got += b' RESET'
    except (socket.timeout, TimeoutError):
        got += b' TIMEOUT'
    return got

def short(b):
    return b.replace(b'\r\n', b'|').decode('latin-1')

def attempt(name, f, *args, **kw):
    try:
        print(name, '=>', f(*args, **kw), flush=True)
    except Exception as e:
        print(name, '=> ERROR', type(e).__name__, e, flush=True)

def say(s, data, wait=15):
    s.sendall(data)
    return short(everything(s, wait))

def get(host, path='/', named=None, more=''):
    return f'GET {path} HTTP/1.1\r\nHost: {named or host}\r\nConnection: close\r\n{more}\r\n'.encode('latin-1')

def plain(host, port=80, path='/', named=None, more=''):
    return say(dial(host, port), get(host, path, named, more))

def tls(host, port=443, path='/', named=None, more='', sni=None, check=True):
    return say(secure(host, port, sni, check=check), get(host, path, named, more))

def hello(names, more=b''):
    # The first message of TLS, by hand: a list of names, each bytes, and further extensions.
    listed = b''.join(b'\0' + struct.pack('>H', len(n)) + n for n in names)
    ext = b''
    if names:
        ext += struct.pack('>HHH', 0, len(listed) + 2, len(listed)) + listed
    ext += bytes.fromhex('000a00040002001d') + bytes.fromhex('000d00080006040308040401')
    ext += bytes.fromhex('002b0003020304') + bytes.fromhex('003300260024001d0020') + os.urandom(32) + more
    body = b'\x03\x03' + os.urandom(32) + b'\0' + bytes.fromhex('0004130113020100') + struct.pack('>H', len(ext)) + ext
    return b'\1' + struct.pack('>I', len(body))[1:] + body

def record(message, size=16384):
    return b''.join(b'\x16\3\1' + struct.pack('>H', len(message[i:i + size])) + message[i:i + size]
                    for i in range(0, len(message), size))

def first(s, data, piece=None, wait=15):
    # How a server begins to answer: hello, alert NUMBER, RESET, or what else it says.
    s.settimeout(wait)
    try:
        if piece:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(0, len(data), piece):
                s.sendall(data[i:i + piece])
        else:
            s.sendall(data)
        got = s.recv(65536)
    except (ConnectionResetError, BrokenPipeError):
        return 'RESET'
    except (socket.timeout, TimeoutError):
        return 'TIMEOUT'
    if not got:
        return 'EOF'
    if got[:1] == b'\x15':
        return f'alert {got[6]}'
    if got[:1] == b'\x16':
        return 'hello'
    return short(got)

def question(name, kind=1, extra=b'', ident=b'\x12\x34'):
    labels = name if isinstance(name, bytes) else b''.join(
        bytes([len(l)]) + l for l in name.encode('latin-1').split(b'.') if l) + b'\0'
    return ident + bytes.fromhex('01000001000000000000') + labels + struct.pack('>HH', kind, 1) + extra

def answers(reply):
    if len(reply) < 12:
        return f'{len(reply)} bytes'
    return f'code {reply[3] & 15} answers {struct.unpack(">H", reply[6:8])[0]}'

def ask(data, server='198.18.0.1', port=53, wait=3):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(wait)
    s.connect((server, port))
    s.send(data)
    return answers(s.recv(4096))
