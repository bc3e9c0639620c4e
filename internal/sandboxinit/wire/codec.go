package wire

import (
	"encoding/binary"
	"errors"
)

// codec puts fields into a message or takes them out, one after the other. What puts a part together and what takes it apart
// is the same code, so the two ends cannot differ. (A general encoding would ask the types of every part in both programs at
// every start, which costs more than building the root.)
type codec struct {
	buf    []byte // what was put, or what is left to be taken
	taking bool
	err    error // of taking; nothing is taken after one
}

var errMessage = errors.New("a message is cut off or has a bad field")

// number codes an integer of 64 bits.
func (c *codec) number(n *uint64) {
	if !c.taking {
		c.buf = binary.AppendUvarint(c.buf, *n)
		return
	}
	v, size := binary.Uvarint(c.buf)
	if c.err != nil || size <= 0 {
		c.fail()
		return
	}
	*n, c.buf = v, c.buf[size:]
}

func (c *codec) fail() { c.buf, c.err = nil, errMessage }

// integer codes any integer that fits its type on both ends.
func integer[T ~int | int64 | uint32 | uint64](c *codec, n *T) {
	v := uint64(*n)
	c.number(&v)
	if !c.taking {
		return
	}
	if *n = T(v); uint64(*n) != v {
		c.fail()
	}
}

func (c *codec) flag(b *bool) {
	var v uint64
	if *b {
		v = 1
	}
	if c.number(&v); v > 1 {
		c.fail()
	}
	*b = v == 1
}

// bytes codes bytes. What is taken is a part of the message, not a copy.
func (c *codec) bytes(b *[]byte) {
	n := uint64(len(*b))
	c.number(&n)
	switch {
	case !c.taking:
		c.buf = append(c.buf, *b...)
	case n > uint64(len(c.buf)):
		c.fail()
	default:
		*b, c.buf = c.buf[:n:n], c.buf[n:]
	}
}

func (c *codec) text(s *string) {
	if c.taking {
		var b []byte
		c.bytes(&b)
		*s = string(b)
		return
	}
	n := uint64(len(*s))
	c.number(&n)
	c.buf = append(c.buf, *s...)
}

// list codes a list by coding each item.
func list[T any](c *codec, items *[]T, item func(*T)) {
	n := uint64(len(*items))
	c.number(&n)
	if !c.taking {
		for i := range *items {
			item(&(*items)[i])
		}
		return
	}
	// One at a time, so that a length alone takes no memory.
	taken := []T{}
	for ; n > 0 && c.err == nil; n-- {
		var one T
		item(&one)
		taken = append(taken, one)
	}
	*items = taken
}

// part is one kind of message.
type part interface{ fields(c *codec) }

// The first byte of a message says which part follows.
const (
	kindSetup = iota + 1
	kindReady
	kindExec
	kindStarted
	kindGo
	kindHeld
	kindResume
	kindResumed
	kindEnded
	kindOpen
	kindOpened
	kindLook
	kindLooked
	kindFailed
	kindAttach
	kindAttached
)

// is tells the part that is set, and its kind; 0 for none.
func (m *Message) is() (byte, part) {
	switch {
	case m.Setup != nil:
		return kindSetup, m.Setup
	case m.Ready != nil:
		return kindReady, m.Ready
	case m.Exec != nil:
		return kindExec, m.Exec
	case m.Started != nil:
		return kindStarted, m.Started
	case m.Go != nil:
		return kindGo, m.Go
	case m.Held != nil:
		return kindHeld, m.Held
	case m.Resume != nil:
		return kindResume, m.Resume
	case m.Resumed != nil:
		return kindResumed, m.Resumed
	case m.Ended != nil:
		return kindEnded, m.Ended
	case m.Open != nil:
		return kindOpen, m.Open
	case m.Opened != nil:
		return kindOpened, m.Opened
	case m.Look != nil:
		return kindLook, m.Look
	case m.Looked != nil:
		return kindLooked, m.Looked
	case m.Failed != nil:
		return kindFailed, m.Failed
	case m.Attach != nil:
		return kindAttach, m.Attach
	case m.Attached != nil:
		return kindAttached, m.Attached
	}
	return 0, nil
}

// become sets an empty part of a kind and returns it; nil for a kind that there is not.
func (m *Message) become(kind byte) part {
	switch kind {
	case kindSetup:
		m.Setup = new(Setup)
	case kindReady:
		m.Ready = new(Ready)
	case kindExec:
		m.Exec = new(Exec)
	case kindStarted:
		m.Started = new(Started)
	case kindGo:
		m.Go = new(Go)
	case kindHeld:
		m.Held = new(Held)
	case kindResume:
		m.Resume = new(Resume)
	case kindResumed:
		m.Resumed = new(Resumed)
	case kindEnded:
		m.Ended = new(Ended)
	case kindOpen:
		m.Open = new(Open)
	case kindOpened:
		m.Opened = new(Opened)
	case kindLook:
		m.Look = new(Look)
	case kindLooked:
		m.Looked = new(Looked)
	case kindFailed:
		m.Failed = new(Failed)
	case kindAttach:
		m.Attach = new(Attach)
	case kindAttached:
		m.Attached = new(Attached)
	}
	_, p := m.is()
	return p
}

func encode(m Message) ([]byte, error) {
	kind, p := m.is()
	if p == nil {
		return nil, errors.New("an empty message")
	}
	c := codec{buf: []byte{kind}}
	p.fields(&c)
	return c.buf, nil
}

// decode takes over b.
func decode(b []byte) (Message, error) {
	var m Message
	if len(b) == 0 {
		return m, errMessage
	}
	p := m.become(b[0])
	if p == nil {
		return m, errMessage
	}
	c := codec{buf: b[1:], taking: true}
	p.fields(&c)
	if c.err != nil || len(c.buf) > 0 {
		return Message{}, errMessage
	}
	return m, nil
}

func (s *Setup) fields(c *codec) {
	c.flag(&s.SingleID)
	c.flag(&s.KeepOwner)
	c.flag(&s.Template)
	c.flag(&s.Kernel)
	c.flag(&s.Guest)
	list(c, &s.Beside, func(m *Mount) { c.text(&m.Source); c.text(&m.Target) })
	c.bytes(&s.Config)
	list(c, &s.Mounts, func(m *Mount) { c.text(&m.Source); c.text(&m.Target) })
	list(c, &s.Devices, func(m *Mount) { c.text(&m.Source); c.text(&m.Target) })
	list(c, &s.Links, func(l *Link) { c.text(&l.Path); c.text(&l.Target) })
	list(c, &s.Files, func(f *File) { c.text(&f.Path); c.bytes(&f.Data) })
	c.text(&s.Inputs)
	c.flag(&s.Network)
	integer(c, &s.DiskBytes)
	integer(c, &s.DiskFiles)
	c.flag(&s.DiskGiven)
	c.text(&s.Hostname)
	c.bytes(&s.Filter)
	c.flag(&s.Landlock)
	integer(c, &s.OpenFiles)
	integer(c, &s.Processes)
}

func (r *Ready) fields(c *codec) {
	integer(c, &r.LandlockABI)
	c.text(&r.Buffer)
}

func (e *Exec) fields(c *codec) {
	list(c, &e.Argv, c.bytes)
	list(c, &e.Env, c.bytes)
	c.text(&e.Dir)
	c.flag(&e.HasCode)
	c.text(&e.CodeName)
	integer(c, &e.Files)
	c.flag(&e.BornIn)
	integer(c, &e.CgroupFiles)
	list(c, &e.CPUs, func(n *int) { integer(c, n) })
	c.flag(&e.Freezer)
	integer(c, &e.Streams)
	c.flag(&e.Stdin)
	c.flag(&e.Held)
	c.flag(&e.Forked)
	c.flag(&e.Channel)
}

func (s *Started) fields(c *codec) {
	c.text(&s.Status)
	c.text(&s.Mounts)
	c.text(&s.UIDMap)
	list(c, &s.Namespaces, c.text)
	list(c, &s.Interfaces, c.text)
	c.text(&s.Notifications)
}

func (*Go) fields(*codec) {}

func (h *Held) fields(c *codec) {
	c.text(&h.Status)
	list(c, &h.Descriptors, c.text)
}

func (r *Resume) fields(c *codec) {
	list(c, &r.Args, c.bytes)
	list(c, &r.Env, c.bytes)
	c.text(&r.CodeName)
	c.flag(&r.Stdin)
	integer(c, &r.Processes)
}

func (*Resumed) fields(*codec) {}

func (e *Ended) fields(c *codec) {
	integer(c, &e.WaitStatus)
	c.text(&e.NotStarted)
}

func (o *Open) fields(c *codec) { c.bytes(&o.Path) }

func (o *Opened) fields(c *codec) { c.flag(&o.NotRegular) }

func (*Look) fields(*codec) {}

func (l *Looked) fields(c *codec) {
	list(c, &l.Processes, func(p *Process) { c.text(&p.Status); list(c, &p.Namespaces, c.text) })
}

func (f *Failed) fields(c *codec) {
	c.text(&f.Step)
	integer(c, &f.Errno)
	c.text(&f.Detail)
}

func (a *Attach) fields(c *codec) {
	integer(c, &a.Device)
	c.flag(&a.Reopen)
	list(c, &a.Sizes, func(n *int64) { integer(c, n) })
	list(c, &a.Shown, func(s *Shown) { c.text(&s.Path); c.flag(&s.Over); integer(c, &s.Content) })
}

func (a *Attached) fields(c *codec) {
	list(c, &a.Interfaces, c.text)
	c.text(&a.Routes)
	c.text(&a.Mounts)
	c.text(&a.Buffer)
}
