// Package userscope gets a user's process a part of the control group tree that it may divide further. On a machine of
// systemd the tree is not the user's to write to; the user's own service manager hands parts of it out, as scope units.
package userscope

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// patience bounds the talk with the manager, which takes some milliseconds.
const patience = 10 * time.Second

// The names of systemd's manager on the bus (org.freedesktop.systemd1(5)).
const (
	manager     = "org.freedesktop.systemd1"
	managerPath = dbus.ObjectPath("/org/freedesktop/systemd1")
	managerFace = manager + ".Manager"
)

// Enter moves this process, all its threads but no child of it, into a new scope unit of the calling user's manager, whose
// control group is handed over with the controllers that the manager itself has. The scope goes when its last process has
// gone. An error means that nothing was moved, unless ctx ended or the manager was silent for 10 s.
func Enter(ctx context.Context) error {
	return enter(ctx, fmt.Sprintf("unix:path=/run/user/%d/bus", os.Getuid()))
}

// property is one of a unit's settings, in the form that the manager takes.
type property struct {
	Name  string
	Value dbus.Variant
}

// enter is Enter with the manager on any bus.
func enter(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the user's service manager did not answer in 10 s"))
	defer cancel()
	conn, err := dbus.Connect(address, dbus.WithContext(ctx), dbus.WithAuth(dbus.AuthExternal(fmt.Sprint(os.Geteuid()))))
	if err != nil {
		return fmt.Errorf("reach the user's service manager: %w", because(ctx, err))
	}
	defer conn.Close()
	// The manager answers with a job at once and tells later, by a signal, how it ended.
	if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(manager), dbus.WithMatchInterface(managerFace),
		dbus.WithMatchMember("JobRemoved")); err != nil {
		return fmt.Errorf("listen to the user's service manager: %w", because(ctx, err))
	}
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	name := "glovebox-" + strings.ToLower(rand.Text()[:16]) + ".scope"
	settings := []property{
		{"Description", dbus.MakeVariant("Glovebox")},
		{"PIDs", dbus.MakeVariant([]uint32{0})}, // whoever asks
		{"Delegate", dbus.MakeVariant(true)},
		{"CollectMode", dbus.MakeVariant("inactive-or-failed")}, // nothing is left of it, however it ends
	}
	type auxiliary struct {
		Name     string
		Settings []property
	}
	var job dbus.ObjectPath
	err = conn.Object(manager, managerPath).CallWithContext(ctx, managerFace+".StartTransientUnit", 0,
		name, "fail", settings, []auxiliary{}).Store(&job)
	if err != nil {
		return fmt.Errorf("ask the user's service manager for a scope: %w", because(ctx, err))
	}
	return await(ctx, signals, job)
}

// await returns when the job has ended.
func await(ctx context.Context, signals <-chan *dbus.Signal, job dbus.ObjectPath) error {
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for a scope: %w", context.Cause(ctx))
		case s, open := <-signals:
			if !open {
				return fmt.Errorf("wait for a scope: %w", because(ctx, errors.New("the bus hung up")))
			}
			var number uint32
			var ended dbus.ObjectPath
			var unit, result string
			if s.Name != managerFace+".JobRemoved" || dbus.Store(s.Body, &number, &ended, &unit, &result) != nil || ended != job {
				continue
			}
			if result != "done" {
				return fmt.Errorf("wait for a scope: the user's service manager says %.40q", result)
			}
			return nil
		}
	}
}

// because prefers the reason why ctx ended to what that broke.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
