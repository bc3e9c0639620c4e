package driver

import "errors"

// ErrNotRegular is returned by Sandbox.Open for a link, a device, a fifo or a socket.
var ErrNotRegular = errors.New("not a regular file")
