package main

import (
	"bufio"
	"cmp"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"glovebox"
	"glovebox/internal/gateway"
	"glovebox/internal/upstream"
)

// gatewaySettings are gateway: how the machine's own side of egress reaches the internet. What may be reached is
// policy.egress.
type gatewaySettings struct {
	resolvers     []string // ADDRESS:PORT; empty: those of /etc/resolv.conf
	proxy         string   // empty: HTTPS_PROXY; none: no proxy
	proxyResolves bool
	roots         string // empty: SSL_CERT_FILE, else what the system has
	ready         int    // netds that a server keeps started; noReady: none

	around surroundings
}

// surroundings are what the environment says of the same, where the configuration does not.
type surroundings struct{ proxy, roots string }

func (a *app) surroundings() surroundings {
	return surroundings{proxy: cmp.Or(a.getenv("HTTPS_PROXY"), a.getenv("https_proxy")), roots: a.getenv("SSL_CERT_FILE")}
}

const (
	resolvConf   = "/etc/resolv.conf"
	noProxy      = "none"
	builtInReady = 2
	noReady      = -1
	maxReady     = 64
	maxRoots     = 8 << 20
)

// systemRoots is where systems have the authorities that they trust.
var systemRoots = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem"}

func (g *gatewaySettings) keys() *key {
	return &key{keys: map[string]*key{
		"resolvers": {item: func(v string) error {
			r, err := parseResolver(v)
			g.resolvers = append(g.resolvers, r.String())
			return err
		}},
		"proxy": scalar(func(v string) error {
			g.proxy = v
			if v == noProxy {
				return nil
			}
			_, err := parseProxy(v)
			return err
		}),
		"proxy_resolves": scalar(yesOrNo(&g.proxyResolves)),
		"roots":          scalar(absolute(&g.roots)),
		"ready": scalar(func(v string) error {
			n, err := parseCount(v)
			if err == nil && (n < 0 || n > maxReady) {
				err = glovebox.Errorf(glovebox.CodeInvalid, "write 0 to 64", "%q is no number of networks to keep ready", short(v))
			}
			if g.ready = int(n); n == 0 {
				g.ready = noReady
			}
			return err
		}),
	}}
}

// parseResolver reads the address of a name server, with its port unless that is 53.
func parseResolver(v string) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddr(v); err == nil {
		return netip.AddrPortFrom(addr, 53), nil
	}
	r, err := netip.ParseAddrPort(v)
	if err != nil || r.Port() == 0 {
		return r, glovebox.Errorf(glovebox.CodeInvalid, "write its address, such as 10.0.0.53 or 10.0.0.53:5353",
			"%q is no name server", short(v))
	}
	return r, nil
}

// parseProxy reads the address of a proxy, which may hold a password: it is in no message.
func parseProxy(v string) (*url.URL, error) {
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.Path != "" && u.Path != "/" {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "write http://HOST:PORT, or none",
			"the value is no address of an HTTP proxy")
	}
	return u, nil
}

// reach is how the internet is reached. The environment and the machine's own files say what the configuration leaves open.
func (g gatewaySettings) reach() (upstream.Config, error) {
	cfg := upstream.Config{ProxyResolves: g.proxyResolves}
	for _, text := range g.resolvers {
		r, err := parseResolver(text)
		if err != nil {
			return cfg, err
		}
		cfg.Resolvers = append(cfg.Resolvers, r)
	}
	if proxy := cmp.Or(g.proxy, g.around.proxy); proxy != "" && proxy != noProxy {
		var err error
		if cfg.Proxy, err = parseProxy(proxy); err != nil {
			return cfg, glovebox.Errorf(glovebox.CodeUnavailable, "set gateway.proxy in glovebox.yaml to http://HOST:PORT or to none",
				"HTTPS_PROXY is no address of an HTTP proxy")
		}
	}
	if len(cfg.Resolvers) == 0 && !cfg.ProxyResolves {
		var err error
		if cfg.Resolvers, err = hostResolvers(resolvConf); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

// dialer makes what reaches the internet.
func (g gatewaySettings) dialer() (*upstream.Dialer, error) {
	cfg, err := g.reach()
	if err != nil {
		return nil, err
	}
	return upstream.New(cfg)
}

// hostResolvers are the name servers of the machine, as a resolv.conf has them: the first three, as resolvers take them.
func hostResolvers(path string) ([]netip.AddrPort, error) {
	const fix = "name them: gateway: {resolvers: [10.0.0.53]} in glovebox.yaml"
	f, err := os.Open(path)
	if err != nil {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable, fix, "the machine's name servers cannot be read: %s", errno(err))
	}
	defer f.Close()
	var list []netip.AddrPort
	for lines := bufio.NewScanner(f); lines.Scan() && len(list) < 3; {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil {
			list = append(list, netip.AddrPortFrom(addr, 53))
		}
	}
	if len(list) == 0 {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable, fix, "%s names no name server", path)
	}
	return list, nil
}

// authorities reads the certificates that the machine trusts.
func (g gatewaySettings) authorities() ([]byte, error) {
	places, must := systemRoots, false
	if name := cmp.Or(g.roots, g.around.roots); name != "" {
		places, must = []string{name}, true
	}
	for _, place := range places {
		info, err := os.Stat(place)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !must:
			continue
		case err != nil:
			return nil, fileError(place, err)
		case !info.Mode().IsRegular() || info.Size() > maxRoots:
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "name a file of certificates in PEM",
				"%q is no file of certificates: it is none, or larger than %d bytes", short(place), maxRoots)
		}
		text, err := os.ReadFile(place)
		if err != nil {
			return nil, fileError(place, err)
		}
		return text, nil
	}
	return nil, glovebox.Errorf(glovebox.CodeUnavailable,
		"apt-get install ca-certificates, or name a file: gateway: {roots: /path} in glovebox.yaml",
		"this machine has no list of authorities that it trusts")
}

// open makes the gateway. It is called when the first run needs one: reading the authorities takes some milliseconds.
func (g gatewaySettings) open(log *slog.Logger) (*gateway.Gateway, error) {
	dialer, err := g.dialer()
	if err != nil {
		return nil, err
	}
	roots, err := g.authorities()
	if err != nil {
		return nil, err
	}
	return gateway.New(gateway.Config{Dialer: dialer, Roots: roots, Log: log})
}
