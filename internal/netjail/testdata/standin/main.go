// Command standin stands in for glovebox-netd: it waits for its link as a netd does, says one thing for each word that it
// reads from it, and ends with its socket.
package main

import (
	"errors"
	"io"
	"os"

	"glovebox/internal/netwire"
)

func main() {
	p, err := netwire.NewPeer(os.NewFile(3, "gateway"))
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	_, link, err := p.Setup()
	if errors.Is(err, io.EOF) {
		return
	}
	if err == nil {
		err = p.Ready()
	}
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	go func() {
		b := make([]byte, 64)
		for {
			n, err := link.Read(b)
			if err != nil {
				return
			}
			switch word := string(b[:n]); {
			case word == "die":
				panic("told to")
			default:
				_ = p.Send(netwire.Event{Kind: netwire.KindName, Host: answer(word), Address: netwire.FirstName()})
			}
		}
	}()
	for {
		if _, err := p.Next(); err != nil {
			return
		}
	}
}

// answer is what can be seen from inside, in the letters of a name.
func answer(word string) string {
	_, err := os.ReadFile(word)
	switch {
	case err == nil:
		return "read"
	case errors.Is(err, os.ErrNotExist):
		return "absent"
	}
	return "refused"
}
