package netlab_test

import (
	"errors"
	"fmt"
	"strings"
)

func basics() []try {
	return []try{
		{name: "1 allowed and not", code: `
attempt('https', tls, 'good.test')
attempt('http', plain, 'good.test')
attempt('https no', tls, 'evil.test')
attempt('http no', plain, 'evil.test')`,
			says: []string{"https => HTTP/1.1 200", "http => HTTP/1.1 200", "good.test says hello", "https no => ERROR SSLError",
				"http no => HTTP/1.1 403", `"reason":"host-not-allowed"`}, never: []string{"evil.test says"},
			dialled: []string{"10.77.0.2:443", "10.77.0.2:80"}, asked: []string{"good.test"},
			decided: []decision{{"good.test", ""}, {"evil.test", "host-not-allowed"}}},
		{name: "1 nothing allowed", allow: []string{}, code: `
begun = time.time()
for host, port in ('good.test', 443), ('10.77.0.2', 443), ('10.77.0.2', 53):
    try: dial(host, port); print('connected')
    except OSError as e: print('refused')
assert time.time() - begun < 2`, says: []string{"refused\nrefused\nrefused"}, never: []string{"connected"}},
		{name: "2 no environment", code: `
for args in (['env', '-i', 'curl', '-sS', '-m', '10', 'https://good.test/'], ['curl', '-sS', '--noproxy', '*', 'http://good.test/'],
        ['env', '-i', 'curl', '-sS', '-m', '10', '--noproxy', '*', 'https://evil.test/', '-k']):
    p = subprocess.run(args, capture_output=True, text=True)
    print(p.returncode, p.stdout, p.stderr)`,
			says: []string{"0 good.test says hello over HTTP/2.0", "0 good.test says hello over HTTP/1.1", "alert access denied"}, never: []string{"evil.test says"},
			dialled: []string{"10.77.0.2:443", "10.77.0.2:80"}, asked: []string{"good.test"},
			decided: []decision{{"evil.test", "host-not-allowed"}}},
		{name: "23 redirects", code: `
import urllib.request, urllib.error
for to in ('https://evil.test/', 'http://evil.test/', 'http://169.254.169.254/latest', 'http://10.77.0.2/', 'http://10.77.0.1/', 'https://bound.test/'):
    try: print(to, '=>', urllib.request.urlopen('https://good.test/redirect?to=' + to, timeout=15).read())
    except Exception as e: print(to, '=>', e, getattr(e, 'read', lambda: b'')())`,
			says:    []string{`"reason":"host-not-allowed"`, `"reason":"ip-literal"`, "bound.test says hello"},
			never:   []string{"evil.test says", "metadata"},
			dialled: []string{"10.77.0.2:443", "10.77.0.3:443"}, asked: []string{"bound.test", "good.test"},
			decided: []decision{{"evil.test", "host-not-allowed"}, {"169.254.169.254", "ip-literal"}}},
		{name: "28 refused quickly", code: `
for f in (tls, plain):
    begun = time.time()
    attempt('', f, 'evil.test')
    assert time.time() - begun < 2`, says: []string{"403"}, decided: []decision{{"evil.test", "host-not-allowed"}}},
		{name: "42 authority", code: `
one = ssl.get_server_certificate
def issuer(host):
    s = secure(host)
    return dict(x[0] for x in s.getpeercert()['issuer'])['commonName']
attempt('good', issuer, 'good.test')
attempt('bound', issuer, 'bound.test')
print(sorted(v for v in os.environ if 'PRIVATE' in v), [open(p).read().count('PRIVATE') for p in (os.environ['SSL_CERT_FILE'],)])`,
			says: []string{"[] [0]"}, never: []string{"ERROR", "laboratory"},
			dialled: nil, asked: nil},
		{name: "43 expect and trailers", code: `
body = b'hello'
s = secure('good.test')
s.sendall(b'POST /upload HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n')
print('first', short(s.recv(4096)))
print('then', say(s, body))
print('chunks', say(secure('good.test'), b'POST /stream HTTP/1.1\r\nHost: good.test\r\nTE: trailers\r\nTrailer: X-End\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\nX-End: yes\r\n\r\n'))`,
			says: []string{"100 Continue", `"bytes":5`, "ABC", "Grpc-Status: 0", `trailer "yes"`}, dialled: []string{"10.77.0.2:443"}, asked: []string{"good.test"}},
		{name: "43 events come as they are sent", code: `
s = secure('good.test')
s.sendall(get('good.test', '/sse?n=5&gap=300'))
begun, at = time.time(), []
while True:
    b = s.recv(4096)
    if not b: break
    at += [round(time.time() - begun, 1)] * b.count(b'data:')
print(len(at), at[-1] - at[0] > 0.9)`, says: []string{"5 True"}, dialled: []string{"10.77.0.2:443"}, asked: []string{"good.test"}},
	}
}

func names() []try {
	return []try{
		{name: "3 spellings that are the same", code: `
for n in 'GOOD.test', 'good.test.', 'Good.Test':
    attempt(n, plain, n)
    attempt(n + ' tls', tls, n.rstrip('.'), check=False)
attempt('dot in a greeting', lambda: first(dial('good.test', 443), record(hello([b'good.test.']))))`, never: []string{"ERROR", "403", "400", "=> hello"},
			dialled: []string{"10.77.0.2:443", "10.77.0.2:80"}, asked: []string{"good.test"}, decided: []decision{{"good.test", ""}}},
		{name: "3 names that are others", code: `
for n in ('evil-good.test', 'good.test.evil.test', 'xgood.test', 'good.test.x', 'test', 'good', 'xn--gd-pmaa.test', 'good.tes', 'ood.test', 'wgood.test.wild.test.x'):
    attempt(n, plain, n)
    attempt(n + ' tls', lambda: first(dial(n, 443), record(hello([n.encode()]))))
for n in 'good.test..', ' good.test', 'good.test@evil.test', 'good.test%00.x', 'a' * 64 + '.test', '.'.join(['a' * 60] * 5), 'good_test', '-.good.test':
    attempt(repr(n), plain, n)`,
			never: []string{"200", "hello", "TIMEOUT"}, decided: []decision{{"evil-good.test", "host-not-allowed"}, {"good.test.evil.test", "host-not-allowed"}}},
		{name: "3 names as Host", code: `
for n in ('evil.test', 'good.test..', 'good.test\0.evil.test', 'good.test@evil.test', 'evil.test@good.test', 'good.test%00.x', 'evil-good.test',
        'good.test.evil.test', 'good.test:443', 'good.test:8080', 'good.test,evil.test', 'good.test/evil', 'good.test evil.test', '10.77.0.2', '[::1]', '',
        'g\xf6\xf6d.test', 'a' * 64 + '.test', 'a.' * 140 + 'test'):
    attempt(repr(n), lambda: say(dial('good.test', 80), b'GET /host HTTP/1.1\r\nHost: ' + n.encode('latin-1') + b'\r\nConnection: close\r\n\r\n'))`,
			never: []string{" 200", "hello", "TIMEOUT"}, then: requests()},
		{name: "3 names as server name", code: `
for n in (b'evil.test', b'good.test..', b'good.test\0.evil.test', b'good.test@evil.test', b'good.test%00.x', b'evil-good.test', b'xgood.test',
        b'good.test.evil.test', b'10.77.0.2', b'', b'good.test ', b'g\xc3\xb6d.test', b'a' * 64 + b'.test', b'a.' * 140 + b'test', b'*.test'):
    attempt(repr(n[:40]), lambda: first(dial('good.test', 443), record(hello([n]))))
attempt('two', lambda: first(dial('good.test', 443), record(hello([b'good.test', b'evil.test']))))
attempt('none', lambda: first(dial('good.test', 443), record(hello([]))))`,
			never: []string{"=> hello", "TIMEOUT", "ERROR"}, decided: []decision{{"good.test", "sni-mismatch"}, {"good.test", "sni-missing"}}},
		{name: "4 what is below a name", code: `
for n in 'a.wild.test', 'a.b.wild.test', 'wild.test', 'awild.test':
    attempt(n, plain, n)`, says: []string{"a.wild.test => HTTP/1.1 200", "a.b.wild.test => HTTP/1.1 200", "wild.test => HTTP/1.1 403", "awild.test => HTTP/1.1 403"},
			dialled: []string{"10.77.0.5:80"}, asked: []string{"a.b.wild.test", "a.wild.test"},
			decided: []decision{{"wild.test", "host-not-allowed"}, {"awild.test", "host-not-allowed"}}},
	}
}

func literals() []try {
	const list = `('10.77.0.2', '10.77.0.3', '169.254.169.254', '168.63.129.16', '8.8.8.8', '20.77.0.2', '198.18.0.1', '198.18.0.2', '127.1', '2130706433', '0x7f.1', '0177.0.0.1', '0', '0.0.0.0', '203.0.113.1', '255.255.255.255', '224.0.0.1')`
	return []try{
		{name: "6 addresses", code: `
for a in ` + list + `:
    attempt(a, plain, a)
    attempt(a + ' tls', lambda: first(dial(a, 443), record(hello([b'good.test']))))
for a in '::1', 'fd00:ec2::254', 'fd77::2', '::ffff:10.77.0.2', '2001:db8::1':
    attempt(a, plain, a)`, says: []string{`"reason":"ip-literal"`}, never: []string{" 200", "=> hello", "TIMEOUT", "metadata:"},
			decided: []decision{{"10.77.0.2", "ip-literal"}, {"169.254.169.254", "ip-literal"}, {"20.77.0.2", "ip-literal"}}},
		{name: "7 addresses as Host and server name", code: `
for a in ` + list + `:
    attempt(a, lambda: say(dial('good.test', 80), get('good.test', named=a)))
    attempt(a + ' tls', lambda: first(dial('good.test', 443), record(hello([a.encode()]))))`, never: []string{" 200", "=> hello", "TIMEOUT"}, then: requests()},
		{name: "9 metadata by name", code: `
for n in 'metadata.google.internal', 'metadata', 'instance-data', 'localhost', 'good.internal', 'host.docker.internal', 'x.local':
    attempt(n, plain, n)`, never: []string{" 200", "metadata:"}},
		{name: "10 the machine", code: `
import concurrent.futures as f
def probe(a, p):
    try: s = socket.create_connection((a, p), 3); s.close(); return True
    except OSError: return False
with f.ThreadPoolExecutor(24) as pool:
    for a in '10.77.0.1', '198.18.0.1', '198.18.0.3':
        some = [22, 25, 53, 79, 81, 111, 139, 445, 631, 853, 2375, 3306, 5353, 5432, 6379, 8080, 8125, 9000, 10250, 65535] + list(range(2000, 2040))
        print(a, [p for p, open in zip(some, pool.map(lambda p: probe(a, p), some)) if open])`,
			says: []string{"10.77.0.1 [", "198.18.0.3 ["}, then: func(e ended) error {
				for line := range strings.Lines(e.out) {
					if !strings.HasSuffix(line, "[]\n") && !strings.HasSuffix(line, "[53]\n") {
						return errors.New("a port is open: " + line)
					}
				}
				return nil
			}},
	}
}

func privates() []try {
	var all []try
	for _, n := range private {
		all = append(all, try{name: "11 " + n, allow: []string{n}, code: fmt.Sprintf("attempt('http', plain, %q)\nattempt('https', tls, %q, check=False)\n", n, n),
			says: []string{`"reason":"upstream-ip-private"`}, never: []string{" 200"}, asked: []string{n},
			decided: []decision{{n, "upstream-ip-private"}}, long: n != "loopback.test" && n != "mapped.test" && n != "self.test" && n != "mixed.test" && n != "alias.test" && n != "metadata.test"})
	}
	for i := range all {
		switch all[i].name {
		case "11 rebind.test": // the first answer is honest; what it says later must not be dialled
			all[i].says, all[i].never, all[i].then = nil, nil, func(e ended) error {
				for _, d := range e.dialled() {
					if !strings.HasPrefix(d, "10.77.0.2:") {
						return errors.New("dialled " + d)
					}
				}
				return nil
			}
			all[i].code = "for i in range(4):\n    attempt('http', plain, 'rebind.test')\n"
			all[i].dialled = []string{"10.77.0.2:80"}
			all[i].long = false
		case "11 mixed.test": // an honest address beside one that nothing may lead to
			all[i].says, all[i].never = nil, nil
			all[i].decided = []decision{{"mixed.test", ""}}
			all[i].dialled = []string{"10.77.0.2:443", "10.77.0.2:80"}
		}
	}
	return all
}

func certificates() []try {
	const all = `
for n in 'selfsigned.test', 'wrongname.test', 'expired.test', 'old.test':
    attempt(n, tls, n)
    attempt(n + ' unchecked', tls, n, check=False)`
	return []try{
		{name: "33 servers that are not who they say", allow: []string{"selfsigned.test", "wrongname.test", "expired.test", "old.test"}, code: all,
			says: []string{`"reason":"upstream-tls"`}, never: []string{" 200", "says hello"}, dialled: []string{"10.77.0.8:443"},
			asked: []string{"expired.test", "old.test", "selfsigned.test", "wrongname.test"}, then: requests(),
			decided: []decision{{"selfsigned.test", "upstream-tls"}, {"wrongname.test", "upstream-tls"}, {"expired.test", "upstream-tls"}, {"old.test", "upstream-tls"}}},
		{name: "11 names that lead nowhere", allow: []string{"gone.test", "nothing.test"}, code: `
attempt('gone', plain, 'gone.test')
attempt('nothing', plain, 'nothing.test')`, says: []string{"gone => HTTP/1.1 502", "nothing => HTTP/1.1 502", `"reason":"upstream-failed"`},
			asked: []string{"gone.test", "nothing.test"}, decided: []decision{{"gone.test", "upstream-failed"}}},
	}
}
