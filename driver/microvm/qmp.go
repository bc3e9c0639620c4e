package microvm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"glovebox/internal/sandboxinit/wire"
)

// qmp speaks QEMU's control protocol: one JSON object a line, a greeting first, answers in order of the commands, and
// events in between. Whoever holds it controls the QEMU process, so the socket never leaves this process.
type qmp struct {
	conn    *os.File   // a unix socket
	asking  sync.Mutex // one command at a time
	answers chan qmpLine
	done    chan struct{} // closed when nothing more comes
	err     error         // why; only once done is closed
	next    int
}

// qmpLine is any line.
type qmpLine struct {
	QMP    json.RawMessage `json:"QMP"`
	Event  string          `json:"event"`
	ID     int             `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

const maxLine = 1 << 20 // bytes of a line

// newQMP takes over conn. run must be running for anything to arrive.
func newQMP(conn *os.File) *qmp {
	return &qmp{conn: conn, answers: make(chan qmpLine, 1), done: make(chan struct{})}
}

// run takes in lines until the connection ends. It is called once.
func (q *qmp) run() {
	defer close(q.done)
	lines := bufio.NewScanner(q.conn)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		var l qmpLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			q.err = fmt.Errorf("control QEMU: %w", err)
			return
		}
		if l.Event != "" {
			continue
		}
		select {
		case q.answers <- l:
		default:
			q.err = errors.New("control QEMU: an answer that nobody asked for")
			return
		}
	}
	q.err = lines.Err()
	if q.err == nil {
		q.err = io.EOF
	}
}

// answer waits for the next line that is no event.
func (q *qmp) answer(ctx context.Context) (qmpLine, error) {
	select {
	case l := <-q.answers:
		return l, nil
	case <-ctx.Done():
		return qmpLine{}, context.Cause(ctx)
	case <-q.done:
		select {
		case l := <-q.answers:
			return l, nil
		default:
			return qmpLine{}, q.err
		}
	}
}

// greet waits for the greeting and begins.
func (q *qmp) greet(ctx context.Context) error {
	l, err := q.answer(ctx)
	if err != nil {
		return fmt.Errorf("greet QEMU: %w", err)
	}
	if l.QMP == nil {
		return errors.New("greet QEMU: it says something else than who it is")
	}
	return q.do(ctx, "qmp_capabilities", nil, nil)
}

// do has QEMU carry out one command, to which files belong. Whoever gives up waiting closes the connection: an answer that
// comes late must not be taken for that of the next command.
func (q *qmp) do(ctx context.Context, command string, args, out any, files ...*os.File) error {
	q.asking.Lock()
	defer q.asking.Unlock()
	q.next++
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        int    `json:"id"`
	}{command, args, q.next})
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = wire.FD(f)
	}
	if err := wire.SendFiles(q.conn, append(line, '\n'), fds); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	l, err := q.answer(ctx)
	switch {
	case err != nil:
		return errors.Join(fmt.Errorf("%s: %w", command, err), q.conn.Close())
	case l.ID != q.next:
		return errors.Join(fmt.Errorf("%s: an answer to another command", command), q.conn.Close())
	case l.Error != nil:
		return fmt.Errorf("%s: %s: %.500q", command, l.Error.Class, l.Error.Desc)
	case l.Return == nil:
		return fmt.Errorf("%s: neither an answer nor an error", command)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(l.Return, out); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}
