package userscope

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// bus is a message bus with a manager on it that answers as told. One conversation is enough.
type bus struct {
	address string
	asked   chan []any // what StartTransientUnit was asked for
}

// behaviour says how the manager answers.
type behaviour struct {
	refusal string // the name of an error in place of a job
	result  string // how the job ends; empty: no word of it
	hangUp  bool   // after the job was promised
}

func newBus(t *testing.T, how behaviour) *bus {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	b := &bus{"unix:path=" + path, make(chan []any, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b.serve(c, how)
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return b
}

func (b *bus) serve(c net.Conn, how behaviour) {
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		switch line = strings.TrimLeft(strings.TrimSpace(line), "\x00"); {
		case err != nil:
			return
		case line == "AUTH":
			fmt.Fprint(c, "REJECTED EXTERNAL\r\n")
			continue
		case line == "AUTH EXTERNAL": // who it is the kernel says
			fmt.Fprint(c, "DATA\r\n")
			continue
		case line == "DATA":
			fmt.Fprint(c, "OK 00\r\n")
			continue
		case line != "BEGIN":
			fmt.Fprint(c, "ERROR\r\n")
			continue
		}
		break
	}
	for {
		m, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		if m.Type != dbus.TypeMethodCall {
			continue
		}
		b.answer(c, m, how)
		if how.hangUp && m.Headers[dbus.FieldMember].Value() == "StartTransientUnit" {
			return
		}
	}
}

const job = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")

func (b *bus) answer(c net.Conn, m *dbus.Message, how behaviour) {
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(m.Serial()), dbus.FieldSender: dbus.MakeVariant(manager),
	}}
	say := func(m *dbus.Message, body ...any) {
		if len(body) > 0 {
			m.Body = body
			m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
		}
		if err := m.EncodeTo(c, binary.LittleEndian); err != nil {
			panic(err)
		}
	}
	switch m.Headers[dbus.FieldMember].Value() {
	case "Hello":
		say(reply, ":1.1")
	case "StartTransientUnit":
		b.asked <- m.Body
		if how.refusal != "" {
			reply.Type = dbus.TypeError
			reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant(how.refusal)
			say(reply, "because")
			return
		}
		say(reply, job)
		removed := func(which dbus.ObjectPath, result string) {
			say(&dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
				dbus.FieldPath: dbus.MakeVariant(managerPath), dbus.FieldInterface: dbus.MakeVariant(managerFace),
				dbus.FieldMember: dbus.MakeVariant("JobRemoved"), dbus.FieldSender: dbus.MakeVariant(manager),
			}}, uint32(7), which, "glovebox-x.scope", result)
		}
		removed(job+"7", "failed") // somebody else's
		if how.result != "" {
			removed(job, how.result)
		}
	default:
		say(reply)
	}
}

func TestEnter(t *testing.T) {
	for name, c := range map[string]struct {
		how  behaviour
		want string // part of the error; empty for none
	}{
		"done":        {behaviour{result: "done"}, ""},
		"failed":      {behaviour{result: "failed"}, `"failed"`},
		"refused":     {behaviour{refusal: "org.freedesktop.DBus.Error.AccessDenied"}, "because"},
		"hangs up":    {behaviour{hangUp: true}, "hung up"},
		"says no end": {behaviour{}, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if name == "says no end" {
				ctx, cancel = context.WithTimeoutCause(ctx, 100*time.Millisecond, errors.New("too long"))
			}
			defer cancel()
			b := newBus(t, c.how)
			err := enter(ctx, b.address)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			got := fmt.Sprintf("%v", <-b.asked)
			for _, part := range []string{"glovebox-", ".scope fail", "[PIDs @au [0]]", "[Delegate true]"} {
				if !strings.Contains(got, part) {
					t.Errorf("asked for %s, without %q", got, part)
				}
			}
		})
	}
}

func TestEnterWithoutBus(t *testing.T) {
	if err := enter(t.Context(), "unix:path="+filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no bus: %v", err)
	}
	// A bus that takes connections and says nothing.
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "bus"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("too long"))
	defer cancel()
	if err := enter(ctx, "unix:path="+l.Addr().String()); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("a silent bus: %v", err)
	}
}
