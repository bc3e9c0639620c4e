package imagestore

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"glovebox/internal/image"
	"glovebox/internal/unpack"
)

// The first line of a manifest. Another layout of sandboxes or of manifests has another number, so that its digests differ.
const manifestHead = "glovebox image 1"

// encode writes a manifest. The entries are sorted by path.
func encode(settings image.Settings, entries []unpack.Entry) []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, manifestHead)
	if settings.Distribution {
		fmt.Fprintln(&b, "distribution")
	}
	for _, v := range settings.Env {
		fmt.Fprintf(&b, "env %q\n", v)
	}
	for _, m := range settings.Modules {
		fmt.Fprintf(&b, "preimport %q\n", m)
	}
	for _, e := range entries {
		switch e.Kind {
		case unpack.Folder:
			fmt.Fprintf(&b, "d 0555 %q\n", e.Path)
		case unpack.Link:
			fmt.Fprintf(&b, "l %q %q\n", e.Path, e.Target)
		default:
			fmt.Fprintf(&b, "f %s %d %x %q\n", fileMode(e), e.Size, e.SHA256, e.Path)
		}
	}
	return b.Bytes()
}

func fileMode(e unpack.Entry) string {
	if e.Executable {
		return "0555"
	}
	return "0444"
}

// digestOf is the digest of a manifest.
func digestOf(manifest []byte) string {
	sum := sha256.Sum256(manifest)
	return "sha256:" + hex.EncodeToString(sum[:])
}

var errManifest = errors.New("this is no manifest")

// settingsOf reads the settings at the beginning of a manifest.
func settingsOf(manifest []byte) (s image.Settings, err error) {
	_, err = walk(manifest, func(word, rest string) (bool, error) {
		value, err := strconv.Unquote(rest)
		switch {
		case word == "distribution" && rest == "":
			s.Distribution = true
			return true, nil
		case word != "env" && word != "preimport":
			return false, nil
		case err != nil:
			return false, errManifest
		case word == "env":
			s.Env = append(s.Env, value)
		default:
			s.Modules = append(s.Modules, value)
		}
		return true, nil
	})
	return s, err
}

// entriesOf reads the entries of a manifest.
func entriesOf(manifest []byte) (list []unpack.Entry, err error) {
	whole, err := walk(manifest, func(word, rest string) (bool, error) {
		if word == "env" || word == "preimport" || word == "distribution" {
			return true, nil
		}
		e, err := entryOf(word, rest)
		list = append(list, e)
		return err == nil, err
	})
	if err == nil && !whole {
		err = errManifest
	}
	return list, err
}

// walk calls each for the lines of a manifest until it says false; it reports whether all were seen.
func walk(manifest []byte, each func(word, rest string) (bool, error)) (bool, error) {
	lines := bufio.NewScanner(bytes.NewReader(manifest))
	lines.Buffer(nil, 64<<10)
	if !lines.Scan() || lines.Text() != manifestHead {
		return false, errManifest
	}
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		if more, err := each(word, rest); err != nil || !more {
			return false, err
		}
	}
	return lines.Err() == nil, lines.Err()
}

func entryOf(word, rest string) (e unpack.Entry, err error) {
	switch word {
	case "d":
		e.Kind = unpack.Folder
		e.Path, err = strconv.Unquote(strings.TrimPrefix(rest, "0555 "))
	case "l":
		e.Kind = unpack.Link
		var quoted string
		if quoted, err = strconv.QuotedPrefix(rest); err != nil {
			break
		}
		if e.Path, err = strconv.Unquote(quoted); err == nil {
			e.Target, err = strconv.Unquote(strings.TrimPrefix(rest[len(quoted):], " "))
		}
	case "f":
		e.Kind = unpack.Regular
		fields := strings.SplitN(rest, " ", 4)
		if len(fields) < 4 {
			return e, errManifest
		}
		e.Executable = fields[0] == "0555"
		sum, bad := hex.DecodeString(fields[2])
		if e.Size, err = strconv.ParseInt(fields[1], 10, 64); err != nil || bad != nil || len(sum) != len(e.SHA256) {
			return e, errManifest
		}
		copy(e.SHA256[:], sum)
		e.Path, err = strconv.Unquote(fields[3])
	default:
		err = errManifest
	}
	return e, err
}
