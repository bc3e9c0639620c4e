package policy

import (
	"encoding/base64"
	"path"
	"strings"

	"glovebox"
)

// Bounds of the inputs of a request.
const (
	maxInputs      = 1024
	maxInputName   = 1024
	maxInputDepth  = 32
	maxInputInline = 64 << 20
)

// Place is where an input's path is to be opened.
type Place struct {
	// Root is the configured folder that the input must not leave; empty for the owner, who may name any path.
	Root string
	// Path is relative to Root, clean and without .. elements; for the owner it is the path as given.
	Path string
}

// Place says where the path of in is to be opened for who, so that whoever opens it uses what was judged here. The check is
// of the spelling only: opening must still refuse links that lead out of Root. A refusal is a *glovebox.Error.
func (p *Policy) Place(who glovebox.Principal, in glovebox.Input) (Place, error) {
	place, d := p.place(who, in)
	if d != nil {
		return Place{}, &glovebox.Error{Code: d.Code, Op: "place input", Public: d.Reason, Fix: d.Fix}
	}
	return place, nil
}

func (p *Policy) place(who glovebox.Principal, in glovebox.Input) (Place, *glovebox.Decision) {
	denied := func(fix, format string) (Place, *glovebox.Decision) {
		return Place{}, refuse("input.root", glovebox.CodeDenied, fix, format, quote(in.Name))
	}
	const fix = "name a file beneath a folder of policy.input_roots, or send its content"
	name := in.Path
	switch {
	case strings.IndexByte(name, 0) >= 0 || name == "":
		return Place{}, invalid("name the file as it is on disk", "the path of input %s is empty or has a NUL byte",
			quote(in.Name))
	case who.Owner:
		return Place{Path: name}, nil
	case len(p.roots) == 0:
		return denied(fix, "input %s is given by path, and no input root is configured")
	case path.Clean(name) != name || name == "." || name == ".." || strings.HasPrefix(name, "../"):
		return denied(fix+", without . and ..", "the path of input %s is not a plain path beneath an input root")
	case !path.IsAbs(name) && len(p.roots) > 1:
		return denied("give the whole path", "the path of input %s is relative, and there are several input roots")
	case !path.IsAbs(name):
		return Place{p.roots[0], name}, nil
	}
	for _, root := range p.roots {
		if rel, ok := strings.CutPrefix(name, root+"/"); ok {
			return Place{root, rel}, nil
		}
	}
	return denied(fix, "the path of input %s is beneath no input root")
}

// checkInputs demands names that cannot leave /inputs, differ, and do not lie in each other, and one source for each.
func checkInputs(r *glovebox.Request) *glovebox.Decision {
	if len(r.Inputs) > maxInputs {
		return invalid("put the files in a folder and pass that", "there are %d inputs and may be %d", len(r.Inputs), maxInputs)
	}
	inline := 0
	names := make(map[string]bool, len(r.Inputs))
	for i := range r.Inputs {
		in := &r.Inputs[i]
		if d := checkInputName(in.Name); d != nil {
			return d
		}
		if names[in.Name] {
			return invalid("give each its own name with SRC:NAME", "two inputs have the name %s", quote(in.Name))
		}
		names[in.Name] = true
		if inline += len(in.Content) + len(in.ContentBase64); inline > maxInputInline {
			return invalid("pass bulk by path", "the inputs given as content have more than %d bytes in all", maxInputInline)
		}
		if d := checkSource(in); d != nil {
			return d
		}
	}
	for i := range r.Inputs {
		for dir := path.Dir(r.Inputs[i].Name); dir != "."; dir = path.Dir(dir) {
			if names[dir] {
				return invalid("give one of them another name with SRC:NAME", "an input lies within another: %s", quote(dir))
			}
		}
	}
	return nil
}

func checkInputName(name string) *glovebox.Decision {
	const fix = "give it a plain relative name with SRC:NAME, such as data.csv"
	bad := func(why string) *glovebox.Decision { return invalid(fix, "input name %s %s", quote(name), why) }
	switch {
	case name == "":
		return bad("is empty")
	case len(name) > maxInputName:
		return bad("is too long")
	case path.IsAbs(name):
		return bad("is absolute; it is beneath /inputs")
	case path.Clean(name) != name || name == "." || name == ".." || strings.HasPrefix(name, "../"):
		return bad("is not a clean relative path")
	case !plain(name):
		return bad("has bytes that do not print")
	}
	elements := strings.Split(name, "/")
	if len(elements) > maxInputDepth {
		return bad("has too many folders")
	}
	for _, e := range elements {
		if len(e) > maxFileName {
			return bad("has an element of more than 255 bytes")
		}
	}
	return nil
}

// checkSource demands at most one source; an input with none is an empty file.
func checkSource(in *glovebox.Input) *glovebox.Decision {
	sources := 0
	for _, s := range []string{in.Content, in.ContentBase64, in.Path, in.Run} {
		if s != "" {
			sources++
		}
	}
	switch {
	case sources > 1:
		return invalid("keep one of them", "input %s has more than one of content, content_base64, path and run", quote(in.Name))
	case (in.Run == "") != (in.Artifact == ""):
		return invalid("give both or neither", "input %s has only one of run and artifact", quote(in.Name))
	}
	if _, err := base64.StdEncoding.Strict().DecodeString(in.ContentBase64); err != nil {
		return invalid("send standard base64 with padding", "content_base64 of input %s is not base64", quote(in.Name))
	}
	return nil
}
