package netd

import (
	"encoding/binary"
	"io"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// questionPatience is how long a connection for questions may take for one.
	questionPatience = 10 * time.Second
	// maxQuestions bounds the questions on one connection.
	maxQuestions = 1000
)

// serveDNS answers questions on a connection, each with its length before it, one after the other.
func (n *network) serveDNS(r *tcp.ForwarderRequest) {
	var queue waiter.Queue
	ep := n.shake(r, &queue)
	if ep == nil {
		return
	}
	conn := gonet.NewTCPConn(&queue, ep)
	defer conn.Close()
	stop := make(chan struct{})
	defer close(stop)
	n.work.Go(func() {
		select {
		case <-n.done:
			ep.Abort()
		case <-stop:
		}
	})
	answers := make(chan []byte, 1)
	for range maxQuestions {
		if conn.SetDeadline(time.Now().Add(questionPatience)) != nil {
			return
		}
		size := make([]byte, 2)
		if _, err := io.ReadFull(conn, size); err != nil {
			return
		}
		length := binary.BigEndian.Uint16(size)
		if length > maxQuestion {
			return
		}
		message := make([]byte, length)
		if _, err := io.ReadFull(conn, message); err != nil {
			return
		}
		answered := n.answerOne(message, answers)
		if answered == nil {
			return
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answered))), answered...)); err != nil {
			return
		}
	}
}

// answerOne waits for the answer to a message; nil if there is none.
func (n *network) answerOne(message []byte, answers chan []byte) []byte {
	n.resolver.answer(message, false, func(b []byte) { answers <- b })
	patience := time.NewTimer(questionPatience)
	defer patience.Stop()
	select {
	case b := <-answers:
		return b
	case <-patience.C:
	case <-n.done:
	}
	return nil
}
