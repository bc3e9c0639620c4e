package netlab

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// keptBody is how much of a request's body is kept.
const keptBody = 64 << 10

// listen accepts at an address of the internet until the laboratory goes away; serve has a connection, which is closed
// after it.
func (l *Lab) listen(address string, serve func(net.Conn)) error {
	var ln net.Listener
	err := l.internet.do(func() (err error) { ln, err = net.Listen("tcp", address); return err })
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	l.away = append(l.away, func() { stop(); ln.Close() })
	l.serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			keep(l.seen, &l.seen.all.Dialled, c.LocalAddr().String())
			l.serving.Go(func() {
				defer context.AfterFunc(ctx, func() { c.Close() })()
				defer c.Close()
				serve(c)
			})
		}
	})
	return nil
}

// accepted counts the connections of a web server.
type accepted struct {
	net.Listener
	lab *Lab
}

func (a accepted) Accept() (net.Conn, error) {
	c, err := a.Listener.Accept()
	if err == nil {
		keep(a.lab.seen, &a.lab.seen.all.Dialled, c.LocalAddr().String())
	}
	return c, err
}

// serveWeb answers http and https at all addresses of web servers, and http where a cloud has its metadata.
func (l *Lab) serveWeb() error {
	sites, err := l.sites()
	if err != nil {
		return err
	}
	for _, at := range []string{Twin, Twin6, Bound, Echo, Wild, Git, Index, Bad, Public} {
		for _, port := range []string{"80", "443", "8443"} {
			if err := l.web(net.JoinHostPort(at, port), port != "80", sites); err != nil {
				return err
			}
		}
	}
	cloud := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "metadata: a token of the cloud\n")
	})
	for _, at := range metadata {
		if err := l.web(net.JoinHostPort(at, "80"), false, cloud); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) web(address string, secure bool, sites http.Handler) error {
	var ln net.Listener
	err := l.internet.do(func() (err error) { ln, err = net.Listen("tcp", address); return err })
	if err != nil {
		return err
	}
	host, _, _ := net.SplitHostPort(address)
	s := &http.Server{Handler: l.record(host, sites), TLSConfig: l.authority.config(), ReadHeaderTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	l.away = append(l.away, func() { s.Close() })
	l.serving.Go(func() {
		if ln = (accepted{ln, l}); secure {
			err = s.ServeTLS(ln, "", "")
		} else {
			err = s.Serve(ln)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			slog.New(slog.NewTextHandler(os.Stderr, nil)).Error("a server of the laboratory", "error", err)
		}
	})
	return nil
}

// record keeps each request before it is served.
func (l *Lab) record(server string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := &Request{Server: server, TLS: r.TLS != nil, Proto: r.Proto, Method: r.Method, Host: r.Host, URI: r.RequestURI,
			Header: r.Header.Clone()}
		if r.TLS != nil {
			got.SNI = r.TLS.ServerName
		}
		keep(l.seen, &l.seen.all.Requests, got)
		body := &counted{ReadCloser: r.Body}
		r.Body = body
		defer func() { l.seen.finish(got, body.head.Bytes(), body.n) }()
		next.ServeHTTP(w, r)
		if r.ProtoMajor == 1 && strings.EqualFold(r.Header.Get("Connection"), "upgrade") {
			return
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(body, 1<<20)) // of which a handler did not care
	})
}

type counted struct {
	io.ReadCloser
	head bytes.Buffer
	n    int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	if room := keptBody - c.head.Len(); room > 0 {
		c.head.Write(b[:min(n, room)])
	}
	c.n += int64(n)
	return n, err
}

// serveRaw has servers that speak no HTTP. At Raw they keep every byte: port 80 answers what looks like a request, port
// 443 does so within TLS, 9000 echoes, and 22 speaks first. So that nothing but an answer tells a program what happened,
// all are slow to close.
func (l *Lab) serveRaw() error {
	plain := func(c net.Conn) { l.talk(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw") }
	for port, serve := range map[string]func(net.Conn){
		"80": plain,
		"443": func(c net.Conn) {
			config := l.authority.config()
			config.NextProtos = []string{"http/1.1"}
			plain(tls.Server(c, config))
		},
		"9000": func(c net.Conn) { _, _ = io.Copy(c, io.LimitReader(c, 1<<30)) },
		"22": func(c net.Conn) {
			_, _ = io.WriteString(c, "SSH-2.0-laboratory\r\n")
			l.talk(c, "")
		},
	} {
		if err := l.listen(net.JoinHostPort(Raw, port), serve); err != nil {
			return err
		}
	}
	return nil
}

// talk reads until nothing comes for a while, answers, and keeps what was said.
func (l *Lab) talk(c net.Conn, answer string) {
	var said []byte
	b := make([]byte, 32<<10)
	for len(said) < 1<<20 {
		_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		n, err := c.Read(b)
		said = append(said, b[:n]...)
		if err != nil && !(errors.Is(err, os.ErrDeadlineExceeded) && len(said) == 0 && answer == "") {
			break
		}
	}
	keep(l.seen, &l.seen.all.Talks, Talk{c.LocalAddr().String(), said})
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(c, answer)
	_, _ = io.Copy(io.Discard, io.LimitReader(c, 1<<20))
}
