// Command glovebox-broker holds secrets for one glovebox, which starts it. It does nothing when started by hand.
package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"

	"glovebox"
	"glovebox/internal/broker"
	"glovebox/internal/brokerd"
	"glovebox/internal/upstream"
)

// controlFile is the descriptor of the socket to whoever started it.
const controlFile = 3

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "glovebox-broker:", err)
		os.Exit(1)
	}
}

func serve() error {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := brokerd.Harden(log); err != nil {
		return err
	}
	f := os.NewFile(controlFile, "control")
	conn, err := net.FileConn(f)
	if err != nil {
		return fmt.Errorf("it is started by glovebox, with a socket: %w", err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	control, ok := conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("it is started by glovebox, with a unix socket, not %T", conn)
	}
	return brokerd.Serve(control, brokerd.Config{Dialer: dialer, Log: log})
}

// dialer makes what reaches upstreams, as the gateway's does.
func dialer(n broker.Network) (brokerd.Dialer, error) {
	cfg := upstream.Config{Resolvers: n.Resolvers, ProxyResolves: n.ProxyResolves}
	if p := n.Proxy.Reveal(); p != "" {
		var err error
		if cfg.Proxy, err = url.Parse(p); err != nil {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "give http://HOST:PORT", "the proxy's address cannot be read")
		}
	}
	return upstream.New(cfg)
}
