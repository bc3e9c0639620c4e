package brokerd

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"

	"glovebox"
	"glovebox/internal/broker"
)

// BenchmarkStart is the cost of the first run that is lent something: a broker, and what it is told. Memory is the broker's own.
func BenchmarkStart(b *testing.B) {
	client, bind := benchClient(b)
	for b.Loop() {
		bind(client())
	}
}

// BenchmarkBind is the cost of every other.
func BenchmarkBind(b *testing.B) {
	client, bind := benchClient(b)
	c := client()
	bind(c)
	for b.Loop() {
		if err := bind(c).Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	for _, pid := range brokers(b) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			b.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "RssAnon:")
		var kib float64
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(kib/1024, "MiB-private")
	}
}

func benchClient(b *testing.B) (func() *broker.Client, func(*broker.Client) *broker.Binding) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	specs := []broker.Spec{{Name: "TOKEN", Env: "GIVEN", Hosts: []string{host}, Attach: broker.PlaceBearer}}
	open := func() *broker.Client {
		c, err := broker.New(broker.Config{Program: self, Secrets: specs, Log: slog.New(slog.DiscardHandler),
			Network: broker.Network{Resolvers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		return c
	}
	return open, func(c *broker.Client) *broker.Binding {
		bound, err := c.Bind(b.Context(), broker.Run{ID: "run_bench"}, httpsTo(host), []glovebox.SecretRef{{Name: "TOKEN", Host: host}})
		if err != nil {
			b.Fatal(err)
		}
		return bound
	}
}
