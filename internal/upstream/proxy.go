package upstream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// maxProxyAnswer bounds what a proxy says before the tunnel.
const maxProxyAnswer = 8 << 10

// throughProxy asks the machine's proxy for a tunnel to host, a name or an address. The proxy's own address is the
// operator's word and is not judged.
func (d *Dialer) throughProxy(ctx context.Context, host string, port uint16) (net.Conn, error) {
	conn, err := d.dialProxy(ctx)
	if err != nil {
		return nil, failed(fmt.Errorf("reach the proxy: %w", err))
	}
	to := net.JoinHostPort(host, strconv.Itoa(int(port)))
	if err := d.tunnel(ctx, conn, to); err != nil {
		_ = conn.Close() // the failure is told
		return nil, failed(fmt.Errorf("ask the proxy for a tunnel: %w", err))
	}
	return conn, nil
}

func (d *Dialer) dialProxy(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Resolver: d.proxyResolver()}
	return dialer.DialContext(ctx, "tcp", d.proxy)
}

// proxyResolver resolves the proxy's own name, by the same name servers where there are any.
func (d *Dialer) proxyResolver() *net.Resolver {
	if len(d.config.Resolvers) == 0 {
		return &net.Resolver{PreferGo: true}
	}
	server := d.config.Resolvers[0].String()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, server)
	}}
}

func (d *Dialer) tunnel(ctx context.Context, conn net.Conn, to string) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	ask := "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n"
	if user := d.config.Proxy.User; user != nil {
		password, _ := user.Password()
		ask += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(conn, ask+"\r\n"); err != nil {
		return err
	}
	head, err := readHead(conn)
	if err != nil {
		return err
	}
	res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered %d", res.StatusCode)
	}
	if !stop() {
		return context.Cause(ctx) // its deadline may be on the connection
	}
	return nil
}

// readHead reads up to the empty line and not a byte more: what follows is the server's.
func readHead(r io.Reader) ([]byte, error) {
	head := make([]byte, 0, 512)
	for one := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); {
		if len(head) == maxProxyAnswer {
			return nil, errors.New("its answer does not end")
		}
		if _, err := io.ReadFull(r, one); err != nil {
			return nil, err
		}
		head = append(head, one[0])
	}
	return head, nil
}
