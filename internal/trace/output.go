package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"glovebox"
)

const inlineBytes = 64 << 10 // an output up to this size lies in the database itself

// keptOutput is one stream of a run, ready to be named by its end.
type keptOutput struct {
	stream string
	bytes  int64
	sha    string
	data   []byte // nil when a blob holds it
}

// keepOutputs brings the kept bytes of both streams to where the end record can name them: small ones go with it into the
// database, large ones are blobs on the disk before it is written, since a record must not outlive what it names.
func (t *Trace) keepOutputs(e End) ([]keptOutput, error) {
	var outputs []keptOutput
	for _, s := range []struct {
		name string
		kept Kept
	}{{"stdout", e.Stdout}, {"stderr", e.Stderr}} {
		o, err := t.keep(s.name, s.kept)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		if o.bytes > 0 {
			outputs = append(outputs, o)
		}
	}
	return outputs, nil
}

func (t *Trace) keep(stream string, k Kept) (o keptOutput, err error) {
	o = keptOutput{stream: stream, bytes: int64(len(k.Data))}
	switch {
	case k.Path != "":
		o.bytes, o.sha, err = t.store.PutFile(k.Path)
		if errors.Is(err, fs.ErrNotExist) && k.SHA256 != "" {
			o.bytes, o.sha, err = t.known(k.SHA256, err) // an earlier try took it over
		}
	case len(k.Data) > inlineBytes:
		o.bytes, o.sha, err = t.store.Put(bytes.NewReader(k.Data))
	case len(k.Data) > 0:
		sum := sha256.Sum256(k.Data)
		o.sha, o.data = hex.EncodeToString(sum[:]), k.Data
	}
	if err == nil && k.SHA256 != "" && o.bytes > 0 && k.SHA256 != o.sha {
		err = errors.New("the kept bytes are not those that were counted: their SHA-256 differs")
	}
	return o, err
}

// known is the size of a blob that is there already, else it fails with err.
func (t *Trace) known(sha string, err error) (int64, string, error) {
	f, openErr := t.store.Open(sha)
	if openErr != nil {
		return 0, "", err
	}
	defer f.Close()
	info, statErr := f.Stat()
	if statErr != nil {
		return 0, "", statErr
	}
	return info.Size(), sha, nil
}

// keptList is what a run left beside its record: the rows of outputs and artifacts.
type keptList struct {
	Outputs []keptRef `json:"outputs,omitempty"`
	// Artifacts is how many there are, ArtifactsSHA256 of their JSON lines in the order of their paths.
	Artifacts       int64  `json:"artifacts,omitempty"`
	ArtifactsSHA256 string `json:"artifacts_sha256,omitempty"`
}

type keptRef struct {
	Stream string `json:"stream"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

func listKept(outputs []keptOutput, artifacts []glovebox.Artifact) *keptList {
	l := &keptList{}
	for _, o := range outputs {
		l.Outputs = append(l.Outputs, keptRef{o.stream, o.bytes, o.sha})
	}
	if len(artifacts) == 0 {
		return l
	}
	artifacts = slices.Clone(artifacts)
	slices.SortFunc(artifacts, func(a, b glovebox.Artifact) int { return strings.Compare(a.Path, b.Path) })
	h := sha256.New()
	for _, a := range artifacts {
		hashArtifact(h, a)
	}
	l.Artifacts, l.ArtifactsSHA256 = int64(len(artifacts)), hex.EncodeToString(h.Sum(nil))
	return l
}

func hashArtifact(h io.Writer, a glovebox.Artifact) {
	line, err := json.Marshal(a)
	if err != nil { // plain strings and numbers always marshal
		panic(err)
	}
	h.Write(append(line, '\n'))
}

// keptBytes is how much a run left beside its record.
func keptBytes(outputs []keptOutput, artifacts []glovebox.Artifact) (n int64) {
	for _, o := range outputs {
		n += o.bytes
	}
	for _, a := range artifacts {
		n += a.Bytes
	}
	return n
}

// checkKept says what was not kept, so that no record names what is not there.
func (t *Trace) checkKept(outputs []keptOutput, artifacts []glovebox.Artifact) error {
	for _, o := range outputs {
		if o.data == nil {
			if err := t.checkBlob(o.sha, o.bytes); err != nil {
				return fmt.Errorf("%s: %w", o.stream, err)
			}
		}
	}
	for _, a := range artifacts {
		if err := t.checkBlob(a.SHA256, a.Bytes); err != nil {
			return fmt.Errorf("artifact %q: %w", beginning(a.Path, 256), err)
		}
	}
	return nil
}

func (t *Trace) checkBlob(sha string, bytes int64) error {
	n, _, err := t.known(sha, fs.ErrNotExist)
	if err == nil && n != bytes {
		err = fmt.Errorf("%d bytes are kept, %d are named", n, bytes)
	}
	return err
}
