package gvisor_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/image"
)

// TestOneAnswers: of the two kernels on the interface, that of the host and that of the sandbox, the latter alone answers.
func TestOneAnswers(t *testing.T) {
	needRoot(t)
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := newDriver(t).Start(t.Context(), driver.Spec{ID: "answers", Root: host.Root(), Network: true, Limits: glovebox.Limits{
		CPUs: 1, Memory: 128 * glovebox.MiB, Disk: 16 * glovebox.MiB, Files: 64, OpenFiles: 64, Processes: 16}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	link, err := s.Attach(t.Context(), driver.Network{})
	if err != nil {
		t.Fatal(err)
	}
	defer link.File.Close()
	ours := []byte{2, 0, 0, 0, 0, 1}
	question := bytes.Join([][]byte{make([]byte, 10), bytes.Repeat([]byte{0xff}, 6), ours, {8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, ours,
		{198, 18, 0, 1}, make([]byte, 6), {198, 18, 0, 2}}, nil)
	if _, err := link.File.Write(question); err != nil {
		t.Fatal(err)
	}
	answers, b := 0, make([]byte, 70000)
	if err := link.File.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := link.File.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n >= 52 && bytes.Equal(b[22:24], []byte{8, 6}) && b[31] == 2 {
			answers++
		}
	}
	if answers != 1 {
		t.Errorf("%d kernels say whose the address is", answers)
	}
}
