package gateway

import (
	"crypto/x509"
	"slices"

	"glovebox/driver"
)

// Where the sandbox's own authority is shown, beside those that the machine trusts: as PEM, and as Java has it.
const (
	bundlePath = "/etc/glovebox/ca.pem"
	javaPath   = "/etc/glovebox/ca.p12"
)

// systemBundles is where programs look that no variable tells: GnuTLS, and what was linked against a distribution's paths.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, Arch
	"/etc/ssl/cert.pem",                                 // Alpine
	"/etc/ssl/ca-bundle.pem",                            // openSUSE
}

// bundleVariables name the bundle to programs. Each was tried: no one of them is enough. They replace what a program would
// trust, so the bundle has the machine's authorities too.
var bundleVariables = []string{
	"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS",
	"npm_config_cafile", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "DENO_CERT",
}

// trust is what a sandbox is shown so that it trusts its own authority.
type trust struct {
	bundle []byte
	java   []byte
}

func (g *Gateway) trust(a *authority) (trust, error) {
	own, err := encodeStore([]*x509.Certificate{a.cert})
	if err != nil {
		return trust{}, err
	}
	java, err := joinStores(g.store, own)
	return trust{slices.Concat(g.config.Roots, a.pem()), java}, err
}

// Files are what the sandbox must be shown, at paths that are the gateway's own. They are given out until Serve is called: a
// sandbox has them by then, and they are larger than all else that is kept for one.
func (a *Attachment) Files() []driver.File {
	t := a.takeTrust(false)
	if t.bundle == nil {
		return nil
	}
	return []driver.File{{Path: bundlePath, Data: t.bundle}, {Path: javaPath, Data: t.java}}
}

// takeTrust returns what there is to be shown, and forgets it where that was the last time.
func (a *Attachment) takeTrust(last bool) trust {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.trust
	if last {
		a.trust = trust{}
	}
	return t
}

// Over are what the sandbox is shown in place of the image's own bundles, where it has them. All have the same data. They
// are given out as long as Files.
func (a *Attachment) Over() []driver.File {
	t := a.takeTrust(false)
	if t.bundle == nil {
		return nil
	}
	files := make([]driver.File, len(systemBundles))
	for i, path := range systemBundles {
		files[i] = driver.File{Path: path, Data: t.bundle}
	}
	return files
}

// Env are the variables, as NAME=VALUE, by which programs inside find what they are to trust. They go after those of an
// image, which may have other values.
func (a *Attachment) Env() []string {
	env := make([]string, 0, len(bundleVariables)+1)
	for _, name := range bundleVariables {
		env = append(env, name+"="+bundlePath)
	}
	return append(env, "JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore="+javaPath+" -Djavax.net.ssl.trustStoreType=PKCS12")
}
