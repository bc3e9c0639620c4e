package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

func TestGatewayConfiguration(t *testing.T) {
	tl := newTool(t)
	tl.env["HTTPS_PROXY"], tl.env["SSL_CERT_FILE"] = "http://outside:3128", "/etc/outside.pem"
	tl.write(t, "g.yaml", "gateway:\n  resolvers: [10.0.0.53, \"10.0.0.54:5353\", \"[fd00::53]:53\"]\n  proxy: http://u:p@proxy:3128\n"+
		"  proxy_resolves: true\n  roots: /etc/roots.pem\n  ready: 7\n")
	if exit, _, errs := tl.run("run", "--config", "g.yaml", "-c", "1"); exit != 0 {
		t.Fatal(errs)
	}
	want := gatewaySettings{resolvers: []string{"10.0.0.53:53", "10.0.0.54:5353", "[fd00::53]:53"}, proxy: "http://u:p@proxy:3128",
		proxyResolves: true, roots: "/etc/roots.pem", ready: 7, around: surroundings{"http://outside:3128", "/etc/outside.pem"}}
	all := cmp.AllowUnexported(gatewaySettings{}, surroundings{})
	if diff := cmp.Diff(want, tl.settings.gateway, all); diff != "" {
		t.Error(diff)
	}
	// What is around a program changes nothing of what a run is.
	here := tl.settings.digest()
	tl.env["HTTPS_PROXY"] = ""
	if exit, _, errs := tl.run("run", "--config", "g.yaml", "-c", "1"); exit != 0 || tl.settings.digest() != here {
		t.Errorf("the digest changes with the environment: %s", errs)
	}
	for _, c := range []struct {
		name, text string
		says       []string
	}{
		{"a name for a resolver", "gateway:\n  resolvers: [ns.example.com]\n", []string{"g.yaml:2: gateway.resolvers", "10.0.0.53"}},
		{"port 0", "gateway: {resolvers: [\"10.0.0.1:0\"]}\n", []string{"gateway.resolvers"}},
		{"proxy", "gateway: {proxy: \"https://user:hunter2@proxy\"}\n", []string{"gateway.proxy", "http://HOST:PORT"}},
		{"ready", "gateway: {ready: 65}\n", []string{"gateway.ready", "0 to 64"}},
		{"roots", "gateway: {roots: roots.pem}\n", []string{"gateway.roots", "absolute"}},
		{"typo", "gateway: {resolver: [1.2.3.4]}\n", []string{"did you mean gateway.resolvers?"}},
	} {
		t.Run(c.name, func(t *testing.T) { refusedConfig(t, c.text, 125, c.says) })
	}
}

func TestHostResolvers(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"usual", "# made by x\nsearch a.test b.test\nnameserver 10.0.0.53\noptions ndots:5\nnameserver  fe80::1%eth0 \n", []string{
			"10.0.0.53:53", "[fe80::1%eth0]:53"}},
		{"three", "nameserver 1.1.1.1\nnameserver 2.2.2.2\nnameserver 3.3.3.3\nnameserver 4.4.4.4\n",
			[]string{"1.1.1.1:53", "2.2.2.2:53", "3.3.3.3:53"}},
		{"junk", "nameserver\nnameserver none\n;nameserver 1.1.1.1\nnameservers 1.1.1.1\n", nil},
		{"empty", "", nil},
	} {
		path := filepath.Join(dir, c.name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := hostResolvers(path)
		var got []string
		for _, r := range list {
			got = append(got, r.String())
		}
		if diff := cmp.Diff(c.want, got); diff != "" || (err == nil) != (len(c.want) > 0) {
			t.Errorf("%s: %s (%v)", c.name, diff, err)
		}
	}
	_, err := hostResolvers(filepath.Join(dir, "absent"))
	var told *glovebox.Error
	if !errors.As(err, &told) || told.Code != glovebox.CodeUnavailable || told.Fix == "" {
		t.Errorf("%#v", err)
	}
}

// TestAuthorities: what is configured, else what the environment names, and never another in place of one that is missing.
func TestAuthorities(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for _, path := range []string{one, two} {
		if err := os.WriteFile(path, []byte(filepath.Base(path)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		configured, around, want string
	}{
		{one, two, "one"}, {"", two, "two"}, {filepath.Join(dir, "absent"), two, ""}, {"", filepath.Join(dir, "absent"), ""}, {dir, "", ""},
	} {
		got, err := gatewaySettings{roots: c.configured, around: surroundings{roots: c.around}}.authorities()
		if string(got) != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q (%v)", c, got, err)
		}
	}
}
