package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"glovebox"
	"glovebox/internal/spelling"
)

// key is one key of a configuration file. One of its fields is set, or keys and value: then it holds either.
type key struct {
	keys    map[string]*key            // it holds these keys
	value   func(string) error         // it holds one value
	item    func(string) error         // it holds a list of values, each given to item
	each    func() *element            // it holds a list of mappings
	named   func(name string) *element // it holds mappings by names that are not fixed
	seen    func()                     // is told that the key is there, whatever it holds; may be nil
	some    bool                       // an empty list would say less than it seems to, and is an error
	missing bool                       // it is known and not built
}

// element is one mapping of a list: its keys, and what looks at it once it was read. Of what has a name it may be a value.
type element struct {
	keys  map[string]*key
	value func(string) error
	done  func() error
}

var missingKey = &key{missing: true}

func scalar(set func(string) error) *key { return &key{value: set} }

// parse reads the text of a file. It is a plain subset of YAML: mappings, lists and values, without anchors, aliases, tags
// or several documents, so that what is read is what is seen.
func (s *settings) parse(text []byte) error { return s.parseAs(s.schema(), text) }

// parseAs reads text that may hold what root says.
func (s *settings) parseAs(root *key, text []byte) error {
	if strings.TrimSpace(string(text)) == "" {
		return nil
	}
	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		return s.syntax(err)
	}
	for i, doc := range f.Docs {
		switch {
		case doc.Body == nil:
			continue
		case i > 0:
			return s.wrong(doc.Body, "", "keep the first", "one document is read")
		}
		if err := s.walk(root, "", doc.Body); err != nil {
			return err
		}
	}
	return nil
}

// syntax tells where a file is no YAML.
func (s *settings) syntax(err error) error {
	why, at := err.Error(), s.file
	if e, ok := err.(interface {
		GetToken() *token.Token
		GetMessage() string
	}); ok {
		why = e.GetMessage()
		if t := e.GetToken(); t != nil && t.Position != nil {
			at = fmt.Sprintf("%s:%d", s.file, t.Position.Line)
		}
	}
	why, _, _ = strings.Cut(why, "\n")
	return glovebox.Errorf(glovebox.CodeInvalid, "write it as YAML", "%s: this is no YAML: %s", at, short(why))
}

// wrong tells what is wrong with a node of the file.
func (s *settings) wrong(n ast.Node, path, fix, format string, args ...any) error {
	at := s.file
	if t := n.GetToken(); t != nil && t.Position != nil {
		at = fmt.Sprintf("%s:%d", s.file, t.Position.Line)
	}
	if path != "" {
		at += ": " + path
	}
	return glovebox.Errorf(glovebox.CodeInvalid, fix, "%s: %s", at, fmt.Sprintf(format, args...))
}

// walk reads node as k demands. path is the key's full name, empty at the top.
func (s *settings) walk(k *key, path string, node ast.Node) error {
	if k.seen != nil {
		k.seen()
	}
	switch {
	case k.missing:
		e := s.wrong(node, path, "remove the key", "it is not available in this version").(*glovebox.Error)
		e.Code = glovebox.CodeUnavailable
		return e
	case k.keys != nil && (k.value == nil || mapping(node)):
		return s.walkMapping(k, path, node)
	case k.each != nil:
		return s.walkEach(k, path, node)
	case k.named != nil:
		return s.walkNamed(k, path, node)
	case k.item != nil:
		list, ok := node.(*ast.SequenceNode)
		if !ok {
			return s.wrong(node, path, "write a list: [a, b]", "this is no list")
		}
		if k.some && len(list.Values) == 0 {
			return s.wrong(node, path, "leave the key out for all, or the whole rule for none", "the list is empty")
		}
		for _, v := range list.Values {
			if err := s.set(k.item, path, v); err != nil {
				return err
			}
		}
		return nil
	default:
		return s.set(k.value, path, node)
	}
}

// walkEach reads a list of mappings. What is wrong with one is told by its line.
func (s *settings) walkEach(k *key, path string, node ast.Node) error {
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		return s.wrong(node, path, "write a list: [{…}, {…}]", "this is no list")
	}
	for i, v := range list.Values {
		at := fmt.Sprintf("%s.%d", path, i+1)
		e := k.each()
		if err := s.walkMapping(&key{keys: e.keys}, at, v); err != nil {
			return err
		}
		if err := e.done(); err != nil {
			return s.at(err, path, v)
		}
	}
	return nil
}

// walkNamed reads mappings by names.
func (s *settings) walkNamed(k *key, path string, node ast.Node) error {
	all := &key{keys: map[string]*key{}}
	elements := map[string]*element{}
	pairs, ok := pairsOf(node)
	if !ok {
		return s.wrong(node, path, "write NAME: {…}", "names and what they stand for are expected here")
	}
	for _, pair := range pairs {
		if name, ok := plainValue(pair.Key); ok && elements[name] == nil {
			elements[name] = k.named(name)
			all.keys[name] = &key{keys: elements[name].keys, value: elements[name].value}
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	if err := s.walkMapping(all, path, node); err != nil {
		return err
	}
	for _, pair := range pairs {
		name, _ := plainValue(pair.Key) // walkMapping has refused what is none
		if err := elements[name].done(); err != nil {
			return s.at(err, path+"."+name, pair.Key)
		}
	}
	return nil
}

// pairsOf are the keys and values of a mapping.
func pairsOf(node ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := node.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

func mapping(node ast.Node) bool {
	switch node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return true
	}
	return false
}

func (s *settings) walkMapping(k *key, path string, node ast.Node) error {
	pairs, ok := pairsOf(node)
	if !ok {
		known := slices.Sorted(maps.Keys(k.keys))
		return s.wrong(node, path, "write keys and values: "+known[0]+": …", "keys are expected here")
	}
	for _, pair := range pairs {
		name, ok := plainValue(pair.Key)
		if !ok {
			return s.wrong(pair.Key, path, "write a plain name", "this is no key")
		}
		full := name
		if path != "" {
			full = path + "." + name
		}
		child, ok := k.keys[name]
		if !ok {
			return s.unknownKey(k, pair, path, full, name)
		}
		if _, twice := s.lines[full]; twice {
			return s.wrong(pair.Key, full, "keep one of them", "the key is there twice")
		}
		s.lines[full] = pair.Key.GetToken().Position.Line
		if err := s.walk(child, full, pair.Value); err != nil {
			return err
		}
	}
	return nil
}

// unknownKey names the nearest key that is known in the same place.
func (s *settings) unknownKey(k *key, pair *ast.MappingValueNode, path, full, name string) error {
	known := slices.Sorted(maps.Keys(k.keys))
	fix := "the keys here are " + strings.Join(known, ", ")
	if n := spelling.Nearest(name, known); n != "" {
		fix = "did you mean " + strings.TrimPrefix(path+"."+n, ".") + "?"
	}
	return s.wrong(pair.Key, short(full), fix, "there is no such key")
}

// set gives the value of node to to.
func (s *settings) set(to func(string) error, path string, node ast.Node) error {
	text, ok := plainValue(node)
	if !ok {
		return s.wrong(node, path, "write one plain value", "this is not a plain value")
	}
	if err := to(text); err != nil {
		return s.at(err, path, node)
	}
	return nil
}

// at tells where in the file an error is from.
func (s *settings) at(err error, path string, node ast.Node) error {
	if e, ok := err.(*glovebox.Error); ok {
		at := s.wrong(node, path, e.Fix, "%s", e.Public).(*glovebox.Error)
		at.Code = e.Code
		return at
	}
	return s.wrong(node, path, "see the documentation of the key", "%s", err.Error())
}

// plainValue is the text of a scalar that says something.
func plainValue(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, n.Value != ""
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}
