package hostside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"glovebox/driver"
	"glovebox/internal/sandboxinit/wire"
)

// Link is a driver's end of the socket to an init: it asks one thing at a time, and hears of the leader's end meanwhile. Its
// methods are safe for concurrent use.
type Link struct {
	cfg     LinkConfig
	replies chan Reply
	lost    chan struct{}

	asking sync.Mutex
	silent bool // a request was given up, and its answer could be taken for that of the next
}

// LinkConfig is what a Link works with. Every field is required.
type LinkConfig struct {
	Conn *wire.Conn
	// Ended hears of the leader's end; nil means that nothing more will be heard.
	Ended func(*wire.Ended)
	// End ends the init on the other side: it did not answer in time, or what nobody asked.
	End func() error
	// Explain makes an error of a failure inside.
	Explain func(*wire.Failed) error
}

// Reply is an answer. Its files are whose who asked.
type Reply struct {
	Message wire.Message
	Files   []*os.File
}

// NewLink listens until the other side hangs up or Close.
func NewLink(cfg LinkConfig) *Link {
	l := &Link{cfg: cfg, replies: make(chan Reply, 1), lost: make(chan struct{})}
	go l.listen()
	return l
}

func (l *Link) listen() {
	defer close(l.lost)
	for {
		m, files, err := l.cfg.Conn.Receive()
		if err != nil {
			break
		}
		if m.Ended != nil {
			wire.CloseAll(files) // of which an init that is what it was sends none
			l.cfg.Ended(m.Ended)
			continue
		}
		select {
		case l.replies <- Reply{m, files}:
		default:
			// An answer that nobody asked for: init is not what it was.
			wire.CloseAll(files)
			_ = l.cfg.End()
		}
	}
	l.cfg.Ended(nil)
}

// Lost is closed when nothing more will come.
func (l *Link) Lost() <-chan struct{} { return l.lost }

// Send says what has no answer.
func (l *Link) Send(m wire.Message, files ...*os.File) error { return l.cfg.Conn.Send(m, files...) }

// Await waits for the answer to what was sent. A failure inside comes back as an error.
func (l *Link) Await(ctx context.Context) (Reply, error) {
	var r Reply
	if ctx.Err() != nil {
		return Reply{}, context.Cause(ctx) // also when an answer is there: whoever gave up does not take it
	}
	select {
	case r = <-l.replies:
	case <-ctx.Done():
		return Reply{}, context.Cause(ctx)
	case <-l.lost:
		select {
		case r = <-l.replies:
		default:
			return Reply{}, errors.New("init ended before it answered")
		}
	}
	if f := r.Message.Failed; f != nil {
		wire.CloseAll(r.Files)
		return Reply{}, l.cfg.Explain(f)
	}
	return r, nil
}

// Ask sends one request and waits for its answer. Whoever gives up waiting ends the other side: an answer that comes late
// must never be taken for that of another request.
func (l *Link) Ask(ctx context.Context, m wire.Message, files ...*os.File) (Reply, error) {
	l.asking.Lock()
	defer l.asking.Unlock()
	if l.silent {
		return Reply{}, errors.New("the sandbox was ended because it did not answer in time")
	}
	if err := l.Send(m, files...); err != nil {
		return Reply{}, err
	}
	r, err := l.Await(ctx)
	if err != nil && ctx.Err() != nil {
		l.silent = true
		_ = l.cfg.End()
	}
	return r, err
}

// openLimit bounds the opening of one output.
const openLimit = 10 * time.Second

// Open asks init for a file or folder beneath /outputs, which the caller closes. What is neither is driver.ErrNotRegular.
func (l *Link) Open(path string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), openLimit)
	defer cancel()
	r, err := l.Ask(ctx, wire.Message{Open: &wire.Open{Path: []byte(path)}})
	if err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	switch {
	case r.Message.Opened == nil:
		err = errors.New("open output: unexpected answer")
	case r.Message.Opened.NotRegular:
		err = driver.ErrNotRegular
	case len(r.Files) != 1:
		err = errors.New("open output: descriptor missing")
	default:
		return r.Files[0], nil
	}
	wire.CloseAll(r.Files)
	return nil, err
}

// Close hangs up and waits until nothing more comes. What came and nobody took is closed.
func (l *Link) Close() error {
	err := l.cfg.Conn.Close()
	<-l.lost
	select {
	case r := <-l.replies:
		wire.CloseAll(r.Files)
	default:
	}
	return err
}
