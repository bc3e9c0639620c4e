package main

import (
	"io"

	"glovebox/internal/plainjson"
)

// writeJSON writes v as one line of JSON that is safe to show on a terminal.
func writeJSON(w io.Writer, v any) error {
	text, err := plainjson.Append(nil, v)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}
