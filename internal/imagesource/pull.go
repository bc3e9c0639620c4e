package imagesource

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"glovebox"
	"glovebox/internal/upstream"
)

// pull finds an image in a registry, as anybody may who has no account there.
func pull(ctx context.Context, cfg Config, reference string) (_ *packed, done func() error, err error) {
	options := []name.Option{name.StrictValidation}
	if cfg.PlainHTTP {
		options = append(options, name.Insecure)
	}
	ref, err := name.ParseReference(reference, options...)
	host, _, _ := strings.Cut(reference, "/")
	if err != nil || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return nil, nil, glovebox.Errorf(glovebox.CodeInvalid,
			"say docker://HOST/NAME:TAG or docker://HOST/NAME@sha256:DIGEST, in full",
			"%.200q is no image of a registry", reference)
	}
	done = func() error { return nil }
	from := cfg.Transport
	if from == nil {
		reach, err := cfg.reach(ref.Context().RegistryStr())
		if err != nil {
			return nil, nil, err
		}
		own := &http.Transport{Proxy: cfg.Proxy, DialContext: reach.DialContext, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: 20 * time.Second, ResponseHeaderTimeout: time.Minute, IdleConnTimeout: time.Minute}
		done = func() error { own.CloseIdleConnections(); return nil }
		from = own
	}
	guard := &only{hosts: append([]string{ref.Context().RegistryStr()}, cfg.Hosts...), plain: cfg.PlainHTTP, next: from}
	img, err := guard.image(ctx, cfg, ref)
	if err != nil {
		return nil, done, guard.explain(ctx, ref, err)
	}
	return img, done, nil
}

// reach is what may be connected to: the registry, what was named besides, and the proxies through which they are reached.
func (cfg *Config) reach(registry string) (*upstream.Named, error) {
	n := &upstream.Named{Hosts: append([]string{registry}, cfg.Hosts...)}
	if cfg.Proxy == nil {
		return n, nil
	}
	for _, host := range n.Hosts {
		for _, scheme := range []string{"https", "http"} {
			proxy, err := cfg.Proxy(&http.Request{URL: &url.URL{Scheme: scheme, Host: host}})
			if err != nil {
				return nil, glovebox.Errorf(glovebox.CodeInvalid, "set HTTPS_PROXY to http://HOST:PORT, or unset it",
					"the environment names no proxy that can be used: %s", brief(err))
			}
			if proxy != nil {
				n.Hosts = append(n.Hosts, proxy.Hostname())
			}
		}
	}
	return n, nil
}

// image asks a registry for what an image is, and prepares to ask for its layers.
func (o *only) image(ctx context.Context, cfg Config, ref name.Reference) (*packed, error) {
	system, arch, _ := strings.Cut(cfg.Platform, "/")
	found, err := remote.Image(ref, remote.WithContext(ctx), remote.WithTransport(o),
		remote.WithPlatform(v1.Platform{OS: system, Architecture: arch}))
	if err != nil {
		return nil, err
	}
	img := &packed{}
	if img.config, err = found.ConfigFile(); err != nil {
		return nil, err
	}
	layers, err := found.Layers()
	if err != nil {
		return nil, err
	}
	if err := fits(cfg, img.config, len(layers)); err != nil {
		return nil, err
	}
	for i, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return nil, err
		}
		size, err := l.Size()
		if err != nil {
			return nil, err
		}
		img.layers = append(img.layers, layer{digest: digest.String(), plain: img.config.RootFS.DiffIDs[i].String(), size: size,
			open: func() (io.ReadCloser, error) {
				body, err := l.Compressed()
				if err != nil {
					return nil, o.explain(ctx, ref, err)
				}
				return body, nil
			}})
	}
	return img, nil
}

// only asks the hosts that were named, and no other, wherever an answer leads.
type only struct {
	hosts []string
	plain bool
	next  http.RoundTripper
}

// elsewhere is an answer that leads to a host that was not named.
type elsewhere struct{ host string }

func (e *elsewhere) Error() string { return "it leads to " + e.host }

// RoundTrip implements http.RoundTripper.
func (o *only) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case !slices.Contains(o.hosts, r.URL.Host) && !slices.Contains(o.hosts, r.URL.Hostname()):
		return nil, &elsewhere{r.URL.Host}
	case r.URL.Scheme != "https" && !(o.plain && r.URL.Scheme == "http"):
		return nil, errors.New("it leads to a host without TLS")
	}
	return o.next.RoundTrip(r)
}

// explain says what is wrong with a registry or its answers.
func (o *only) explain(ctx context.Context, ref name.Reference, err error) error {
	var led *elsewhere
	var told *glovebox.Error
	host := ref.Context().RegistryStr()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &told):
		return err
	case errors.As(err, &led):
		return glovebox.Errorf(glovebox.CodeDenied,
			"if that is where the registry keeps its layers or tokens, say --also "+led.host,
			"the registry %.200s leads to %.200s, and only what was named is asked", host, led.host)
	}
	return &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "pull", Err: err,
		Public: "the image could not be fetched from " + host + ": " + brief(err),
		Fix:    "check the name, and that the registry needs no account; else save the image elsewhere and import the file"}
}

// brief is the beginning of what a registry said, which is nobody's word to act on.
func brief(err error) string {
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, err.Error())
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	return strings.ToValidUTF8(text, "")
}
