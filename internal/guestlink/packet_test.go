package guestlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// each gives one packet to each read, and takes one with each write.
type each struct {
	packets [][]byte
	refuse  error // the first write
}

func (e *each) Read(b []byte) (int, error) {
	if len(e.packets) == 0 {
		return 0, nil
	}
	n := copy(b, e.packets[0])
	e.packets = e.packets[1:]
	return n, nil
}

func (e *each) Write(b []byte) (int, error) {
	if err := e.refuse; err != nil {
		e.refuse = nil
		return 0, err
	}
	e.packets = append(e.packets, slices.Clone(b))
	return len(b), nil
}

func TestPackets(t *testing.T) {
	sent := [][]byte{bytes.Repeat([]byte{1}, minPacket), bytes.Repeat([]byte{2}, minPacket-1), bytes.Repeat([]byte{3}, maxPacket),
		bytes.Repeat([]byte{4}, maxPacket+1), bytes.Repeat([]byte{5}, 1500)}
	var wire bytes.Buffer
	if err := SendPackets(&wire, &each{packets: slices.Clone(sent)}); err != io.EOF {
		t.Fatal(err)
	}
	lost := errors.New("lost")
	to := &each{refuse: lost}
	if err := TakePackets(to, bytes.NewReader(wire.Bytes()), func(err error) bool { return err == lost }); err != io.EOF {
		t.Fatal(err)
	}
	if d := cmp.Diff([][]byte{sent[2], sent[4]}, to.packets); d != "" { // the first was refused, two are no packets
		t.Errorf("(-sent +got):\n%.500s", d)
	}
	if err := TakePackets(&each{refuse: lost}, bytes.NewReader(wire.Bytes()), func(error) bool { return false }); err != lost {
		t.Errorf("a link that has ended: %v", err)
	}
}

// FuzzPackets: whatever comes, each write is one packet within its bounds.
func FuzzPackets(f *testing.F) {
	f.Add(binary.LittleEndian.AppendUint32(nil, maxPacket+1))
	f.Add(append(binary.LittleEndian.AppendUint32(nil, 10), make([]byte, 10)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		to := &each{}
		if err := TakePackets(to, bytes.NewReader(b), func(error) bool { return false }); err == nil {
			t.Error("it goes on without end")
		}
		sum := 0
		for _, p := range to.packets {
			if sum += 4 + len(p); len(p) < minPacket || len(p) > maxPacket {
				t.Errorf("a packet of %d bytes", len(p))
			}
		}
		if sum > len(b) {
			t.Errorf("%d bytes of %d", sum, len(b))
		}
	})
}
