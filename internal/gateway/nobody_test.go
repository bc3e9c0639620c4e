package gateway

import (
	"context"
	"errors"
	"net"

	"glovebox/internal/upstream"
)

// nobody is an internet in which there is nobody.
type nobody struct{}

func (nobody) DialContext(context.Context, upstream.Target) (net.Conn, error) {
	return nil, errors.New("nobody is there")
}
