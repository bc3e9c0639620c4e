package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"glovebox"
	"glovebox/internal/egress"
)

// passTCP connects the sandbox to a place whose bytes no rule judges. The place is reached first: the sandbox's connect
// succeeds only then.
func (a *Attachment) passTCP(f *flow) {
	v := a.judgeStream(f.host, f.port, egress.TCP)
	if !v.Allowed {
		a.ledger.denied(f.name, f.port, layerTCP, v.Reason, v.Rule)
		f.reset()
		return
	}
	f.admit(egress.TCP)
	up, err := a.dial(f.ctx, place{f.host, f.port})
	if err != nil {
		a.notReached(f, layerTCP, v, err)
		f.reset()
		return
	}
	if !f.accept() {
		_ = up.Close() // nothing was sent
		return
	}
	a.pass(f, up, layerTCP, v)
}

// passTLS connects the sandbox to a place whose name was judged and nothing else.
func (a *Attachment) passTLS(f *flow, v egress.Verdict) {
	up, err := a.dial(f.ctx, place{f.host, f.port})
	if err != nil {
		a.notReached(f, layerTLS, v, err)
		f.finish(accessDenied)
		return
	}
	_ = f.conn.SetReadDeadline(time.Time{}) // a closed connection fails at the next Read
	a.pass(f, up, layerTLS, v)
}

// notReached records that a place could not be reached, and why.
func (a *Attachment) notReached(f *flow, layer string, v egress.Verdict, err error) {
	if context.Cause(f.ctx) != nil {
		return // nobody wants it any more
	}
	a.ledger.note(glovebox.EgressFlow{Host: f.name, Port: int(f.port), Layer: layer, Reason: string(classify(err).reason),
		Rule: v.Rule}, detail{err: err})
}

// pass copies both ways until both sides have ended or the flow was stopped.
func (a *Attachment) pass(f *flow, up net.Conn, layer string, v egress.Verdict) {
	stop := context.AfterFunc(f.ctx, func() { _ = up.Close() })
	defer stop()
	began := now()
	var find Finder
	if a.binding != nil {
		find = a.binding.Finder()
	}
	var both sync.WaitGroup
	both.Go(func() {
		if err := a.copy(up, f, find); errors.Is(err, errPlaceholder) {
			a.betrayed()
			f.stop(egress.ReasonSecretWrongHost)
		} else if err != nil {
			_ = up.Close() // a half that failed ends the other
			return
		}
		closeWrite(up)
	})
	if err := a.copy(f, up, nil); err != nil {
		f.end(errEnded)
		f.reset()
	} else {
		_ = f.CloseWrite() // who is gone is not told
	}
	both.Wait()
	_ = up.Close()
	_ = f.Close()
	a.ledger.note(glovebox.EgressFlow{Host: f.name, Port: int(f.port), Allowed: true, Layer: layer, Rule: v.Rule,
		BytesUp: f.up.Load(), BytesDown: f.down.Load()}, detail{took: now().Sub(began)})
}

// closeWrite tells the other side that nothing more comes.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // who is gone is not told
	}
}

// copy copies until src ends. Whatever find finds ends it.
func (a *Attachment) copy(dst io.Writer, src io.Reader, find Finder) error {
	buf := a.gateway.streams.Get()
	defer a.gateway.streams.Put(buf)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if find != nil && find.Find(buf[:n]) {
				return errPlaceholder
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// rejudgeFlow ends a connection that the rules do not allow now, as what it was judged as.
func (a *Attachment) rejudgeFlow(f *flow, why egress.Reason) {
	f.mu.Lock()
	judged, carries := f.judged, f.carries
	f.mu.Unlock()
	if !judged {
		return // it was refused, or is being judged and will be once more
	}
	v := a.judgeConnect(f.host, f.port)
	if v.Allowed && carries != "" {
		v = a.judgeStream(f.host, f.port, carries)
	}
	if v.Allowed && (carries != egress.HTTPS || v.Mode == egress.Inspect) {
		f.rejudgeAt(v.Expires)
		return
	}
	f.stop(why)
}
