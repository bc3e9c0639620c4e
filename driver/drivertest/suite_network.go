package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"glovebox/driver"
)

// networkCases are about a sandbox that is attached to a network, whose other end is the suite's.
var networkCases = map[string]func(*bench){
	"network: names and datagrams go over the link and nowhere else": caseLink,
	"network: libraries find names as they do elsewhere":             caseLibraries,
	"network: what is made for one reaches nobody without it":        caseUnattached,
	"network: it is gone when the link is closed":                    caseLinkClosed,
	"network: its files are there and cannot be changed":             caseNetworkFiles,
	"network: a program cannot change it":                            caseMeddle,
	"network: once, before the program, where it was made for it":    caseAttachRefused,
	"network: sandboxes see none of each other's":                    caseLinksApart,
	"network: an interpreter that waits gets it as a cold one does":  caseHeldNetwork,
	"network: it is made and given up without anything that is left": caseLinksUnused,
}

// attachable makes a sandbox that can be attached.
func (b *bench) attachable() driver.Sandbox {
	b.Helper()
	b.network = true
	return b.start()
}

// attach attaches a sandbox to a peer that serves until the end of the case.
func (b *bench) attach(box driver.Sandbox, n driver.Network) *peer {
	b.Helper()
	link, err := box.Attach(b.context(), n)
	if err != nil {
		b.Fatalf("attach: %v", err)
	}
	p := &peer{link: link}
	p.work.Go(p.serve)
	b.Cleanup(p.close)
	return p
}

// close takes the network away.
func (p *peer) close() {
	p.link.File.Close()
	p.work.Wait()
}

// runIn runs a program that ends by itself in box and returns the lines that it printed.
func (b *bench) runIn(box driver.Sandbox, cmd driver.Command) []string {
	b.Helper()
	r := b.exec(box, cmd)
	b.wantExit(r, b.exit(r), 0)
	return strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n")
}

func caseLink(b *bench) {
	box := b.attachable()
	p := b.attach(box, driver.Network{})
	b.wantLines(b.runIn(box, probe("resolve", "good.test")), "yes good.test 198.18.1.7")
	b.wantLines(b.runIn(box, probe("send", "198.18.1.7:9", "hello")), "yes echo hello ")
	b.wantLines(b.runIn(box, probe("send", "8.8.8.8:53053", "far")), "yes echo far ")
	names, texts, others := p.seen()
	if !slices.Contains(names, "good.test 1") || !slices.Equal(texts, []string{"hello", "far"}) {
		b.Errorf("at the other end: names %q, texts %q", names, texts)
	}
	// Whatever else came must be the program's own doing: the sandbox says nothing by itself.
	if len(others) > 0 {
		b.Errorf("at the other end: %q", others)
	}
	// There is no way to what is not of IPv4, and that is said at once.
	b.wantLines(b.runIn(box, probe("send", "[2001:db8::1]:9", "six")), "no ")
}

// wantLines demands one line that begins with text.
func (b *bench) wantLines(lines []string, text string) {
	b.Helper()
	if len(lines) != 1 || !strings.HasPrefix(lines[0], text) {
		b.Errorf("the program says %q, want %q…", lines, text)
	}
}

// caseLibraries asks for a name through the C library and what interpreters have.
func caseLibraries(b *bench) {
	cmds := map[string]driver.Command{
		"getent": shell("if [ ! -e /usr/bin/getent ]; then echo 198.18.1.7 by nobody; exit; fi\n" +
			"getent ahostsv4 good.test | head -n 1")}
	if path := b.subject.Interpreters["python"]; path != "" {
		cmds["python"] = driver.Command{Dir: "/", Argv: []string{path, "-c",
			"import socket\nprint(socket.getaddrinfo('good.test', 80, type=socket.SOCK_STREAM)[0][4][0])"}}
	}
	if path := b.subject.Interpreters["node"]; path != "" {
		cmds["node"] = driver.Command{Dir: "/", Argv: []string{path, "-e",
			"const d = require('dns'); d.lookup('good.test', (e, a) =>\n" +
				"d.resolve4('good.test', (f, b) => console.log(e || a, f || b[0])))"}}
	}
	for name, cmd := range cmds {
		box := b.attachable()
		b.attach(box, driver.Network{})
		cmd.Env = []string{"PATH=/usr/bin:/bin"}
		out := strings.Join(b.runIn(box, cmd), " ")
		if !strings.HasPrefix(out, "198.18.1.7") || strings.Contains(strings.ToLower(out), "error") {
			b.Errorf("%s says %q", name, out)
		}
	}
}

func caseUnattached(b *bench) {
	for _, network := range []bool{false, true} {
		b.network = network
		box := b.start()
		begun := time.Now()
		lines := b.runIn(box, probe("send", "198.18.0.1:53", "anybody"))
		b.wantLines(lines, "no ")
		if took := time.Since(begun); !network && took > b.slack/4 {
			b.Errorf("made for a network: %v: it took %v to say so", network, took)
		}
		b.wantLines(b.runIn(box, probe("send", "10.0.0.1:9", "anybody")), "no ")
	}
}

func caseLinkClosed(b *bench) {
	box := b.attachable()
	p := b.attach(box, driver.Network{})
	r, lines := b.talk(box, probe("send", "198.18.1.7:9", "more", "again"))
	b.await(lines, "yes echo more")
	p.close()
	fmt.Fprintln(r.in)
	if line := b.await(lines, ""); !strings.HasPrefix(line, "no ") {
		b.Errorf("after the link was closed: %s", line)
	}
	if err := r.Kill(b.context()); err != nil {
		b.Error(err)
	}
	// Once and for all.
	if _, err := box.Attach(b.context(), driver.Network{}); !errors.Is(err, driver.ErrAttached) {
		b.Errorf("attached again: %v", err)
	}
}

// networkFiles are such as a gateway has: some that no image has, and some over what one has.
func networkFiles() driver.Network {
	bundle := []byte("the sandbox's own authority\n")
	return driver.Network{
		Files: []driver.File{{Path: "/etc/glovebox/ca.pem", Data: bundle},
			{Path: "/etc/glovebox/python/lend.py", Data: []byte("VALUE = 7\n")}},
		Over: []driver.File{{Path: "/etc/passwd", Data: bundle}, {Path: "/etc/no/such/bundle.pem", Data: bundle},
			{Path: "/etc/hosts", Data: []byte("127.0.0.1 localhost mine\n")}},
	}
}

// wantFiles is what a program sees of networkFiles.
const wantFiles = "the sandbox's own authority|VALUE = 7|the sandbox's own authority|127.0.0.1 localhost mine|" +
	"nameserver 198.18.0.1|absent"

const catFiles = `cat /etc/glovebox/ca.pem /etc/glovebox/python/lend.py /etc/passwd /etc/hosts
grep nameserver /etc/resolv.conf
if [ -e /etc/no ]; then echo there; else echo absent; fi`

func caseNetworkFiles(b *bench) {
	box := b.attachable()
	b.attach(box, networkFiles())
	if out := strings.Join(b.runIn(box, shell(catFiles)), "|"); out != wantFiles {
		b.Errorf("the files are\n%s, want\n%s", out, wantFiles)
	}
	b.mustNot(b.runIn(box, probe("change", "/etc/glovebox/ca.pem", "/etc/glovebox/python/lend.py", "/etc/resolv.conf",
		"/etc/passwd", "/etc/glovebox/new", "/etc/glovebox")), 6)
	if out := strings.Join(b.runIn(box, shell(catFiles)), "|"); out != wantFiles {
		b.Errorf("after a program tried to change them the files are\n%s", out)
	}
}

func caseMeddle(b *bench) {
	box := b.attachable()
	b.attach(box, driver.Network{})
	b.mustNot(b.runIn(box, probe("meddle")), 20)
	b.wantLines(b.runIn(box, probe("send", "198.18.1.7:9", "still")), "yes echo still ")
	r := b.exec(box, probe("facts"))
	b.wantExit(r, b.exit(r), 0)
	b.truthful(r.Posture(), b.parse([]string{r.out.String()}))
	if got := r.Posture()["network"]; got != "attached" && r.Posture()[inGuest+"network"] != "attached" {
		b.Errorf("the posture says of the network %q", got)
	}
}

func caseAttachRefused(b *bench) {
	if _, err := b.start().Attach(b.context(), driver.Network{}); err == nil {
		b.Error("a sandbox that was not made for a network has one")
	}
	for _, n := range []driver.Network{
		{Files: []driver.File{{Path: "/etc/passwd"}}}, {Files: []driver.File{{Path: "/etc/glovebox/../passwd"}}},
		{Over: []driver.File{{Path: "/usr/bin/env"}}}, {Over: []driver.File{{Path: "/etc/../usr/bin/env"}}},
		{Over: []driver.File{{Path: "/etc/hosts"}, {Path: "/etc/hosts"}}}, {Over: []driver.File{{Path: driver.ResolvConf}}},
		{Files: []driver.File{{Path: "/etc/glovebox/x", Data: make([]byte, driver.MaxNetworkBytes+1)}}},
	} {
		if _, err := b.attachable().Attach(b.context(), n); err == nil {
			b.Errorf("attached with %.200q", fmt.Sprint(n))
		}
	}
	box := b.attachable()
	b.attach(box, driver.Network{})
	if _, err := box.Attach(b.context(), driver.Network{}); !errors.Is(err, driver.ErrAttached) {
		b.Errorf("attached twice: %v", err)
	}
	box = b.attachable()
	r, lines := b.talk(box, probe("send", "198.18.0.1:53", "anybody", "again"))
	b.await(lines, "no ")
	if _, err := box.Attach(b.context(), driver.Network{}); err == nil {
		b.Error("a sandbox with a program was attached")
	}
	if err := r.Kill(b.context()); err != nil {
		b.Error(err)
	}
}

func caseLinksApart(b *bench) {
	var all sync.WaitGroup
	for _, text := range []string{"one", "other"} {
		box := b.attachable()
		p := b.attach(box, driver.Network{})
		all.Go(func() {
			for range 3 {
				b.wantLines(b.runIn(box, probe("send", "198.18.0.2:9", text)), "no ") // its own address, and nobody listens there
				b.wantLines(b.runIn(box, probe("send", "198.18.0.1:9", text)), "yes echo "+text)
			}
			if _, texts, _ := p.seen(); !slices.Equal(texts, []string{text, text, text}) {
				b.Errorf("the link of %s carried %q", text, texts)
			}
		})
	}
	all.Wait()
}

func caseHeldNetwork(b *bench) {
	if _, ok := b.driver.(driver.Warmer); !ok {
		b.Skip("the driver has nothing ready")
	}
	b.network = true
	for _, lang := range b.languages() {
		b.attachHeld(lang, func() driver.HeldSandbox { return b.waiting(lang) })
	}
}

func caseCopyNetwork(b *bench) {
	b.network = true
	tm := b.template("")
	b.attachHeld("python", func() driver.HeldSandbox { return b.copied(tm) })
}

// attachHeld attaches what waits, and looks at what its programs find.
func (b *bench) attachHeld(lang string, wait func() driver.HeldSandbox) {
	b.Helper()
	box := wait()
	p := b.attach(box, networkFiles())
	r := b.release(box, lang, codeOf(lang, "resolve", "good.test", "other.test"))
	b.wantExit(r, b.exit(r), 0)
	if out := r.out.String(); out != "yes good.test 198.18.1.7\nyes other.test 198.18.1.7\n" {
		b.Errorf("%s: it says %q", lang, out)
	}
	if names, _, _ := p.seen(); !slices.Contains(names, "good.test 1") {
		b.Errorf("%s: at the other end: %q", lang, names)
	}
	box = wait()
	b.attach(box, networkFiles())
	r = b.release(box, lang, codeOf(lang, "read", "/etc/glovebox/ca.pem", "/etc/resolv.conf", "/etc/passwd"))
	b.wantExit(r, b.exit(r), 0)
	if out := r.out.String(); strings.Count(out, "own authority") != 2 || !strings.Contains(out, "nameserver 198.18.0.1") {
		b.Errorf("%s: its files say %q", lang, out)
	}
	if got := r.Posture()["network"]; got != "attached" && r.Posture()[inGuest+"network"] != "attached" {
		b.Errorf("%s: the posture says of the network %q", lang, got)
	}
	box = wait()
	b.attach(box, driver.Network{})
	r = b.release(box, lang, codeOf(lang, "meddle"))
	b.wantExit(r, b.exit(r), 0)
	b.mustNot(strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n"), 20)
	// What is not attached has no network, also where it could have one.
	r = b.release(wait(), lang, codeOf(lang, "send", "198.18.0.1:53", "anybody"))
	b.wantExit(r, b.exit(r), 0)
	b.wantLines([]string{r.out.String()}, "no ")
}

// caseLinksUnused attaches sandboxes that then have no program, some of whose links outlive them.
func caseLinksUnused(b *bench) {
	for range 3 {
		box := b.attachable()
		link, err := box.Attach(b.context(), driver.Network{})
		if err != nil {
			b.Fatal(err)
		}
		if err := box.Close(b.context()); err != nil {
			b.Error(err)
		}
		link.File.Close()
	}
}
