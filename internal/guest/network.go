package guest

import (
	"context"
	"errors"
	"os"
	"slices"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/guestlink"
)

// attach makes the network of the sandbox in the guest, and copies its packets to the driver and back. It ends with either
// stream, and then there is none any more.
func (a *agent) attach(ctx context.Context, n guestlink.Attach) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.box == nil {
		return errState
	}
	in, err := a.link.ReaderOf(n.In)
	if err != nil {
		return err
	}
	out, err := a.link.WriterOf(n.Out)
	if err != nil {
		return errors.Join(err, in.Close())
	}
	files := func(list []guestlink.File) (all []driver.File) {
		for _, f := range list {
			all = append(all, driver.File{Path: f.Path, Data: n.Contents[f.Content]})
		}
		return all
	}
	for _, f := range slices.Concat(n.Files, n.Over) {
		if f.Content < 0 || f.Content >= len(n.Contents) {
			return errors.Join(errors.New("attach network: a file without content"), in.Close(), out.Close())
		}
	}
	link, err := a.box.Attach(ctx, driver.Network{Files: files(n.Files), Over: files(n.Over)})
	if err != nil {
		if known := new(glovebox.Error); errors.As(err, &known) && known.Code == glovebox.CodeUnavailable {
			err = glovebox.Errorf(glovebox.CodeUnavailable, "use a kernel for guests that has the module tun",
				"the guest has no network device: %s", known.Public)
		}
		return errors.Join(err, in.Close(), out.Close())
	}
	a.streams.Go(func() {
		// However it ends, the network has.
		_ = guestlink.SendPackets(out, link.File)
		end(link.File, in, out)
	})
	a.streams.Go(func() {
		_ = guestlink.TakePackets(link.File, in, func(err error) bool { return !errors.Is(err, os.ErrClosed) })
		end(link.File, in, out)
	})
	return nil
}

// end takes the network away.
func end(link *os.File, in *guestlink.Reader, out *guestlink.Writer) {
	_ = link.Close() // it may be closed
	_ = in.Close()
	_ = out.Close()
}
