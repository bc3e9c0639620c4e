package main

import (
	"encoding/json"

	"glovebox"
	"glovebox/internal/broker"
	"glovebox/internal/brokerd/action"
)

// action reads one of actions.
func (s *settings) action(name string) *element {
	a := broker.Action{Name: name}
	request := func() *broker.ActionHTTP { return made(&a.HTTP) }
	text := func(field func(*broker.ActionHTTP) *string) *key {
		return scalar(func(v string) error { *field(request()) = v; return nil })
	}
	return &element{
		keys: map[string]*key{
			"schema": asJSON(func() *json.RawMessage { return &a.Schema }), "command": words(&a.Command),
			"http": {keys: map[string]*key{
				"method": text(func(h *broker.ActionHTTP) *string { return &h.Method }),
				"url":    text(func(h *broker.ActionHTTP) *string { return &h.URL }),
				"secret": text(func(h *broker.ActionHTTP) *string { return &h.Secret }),
				"body":   asJSON(func() *json.RawMessage { return &request().Body }),
				"headers": {named: func(header string) *element {
					return &element{done: func() error { return nil }, value: func(v string) error {
						if request().Headers == nil {
							request().Headers = map[string]string{}
						}
						request().Headers[header] = v
						return nil
					}}
				}},
			}},
			"per_run": scalar(func(v string) (err error) { a.PerRun, err = parseCount(v); return notZero(a.PerRun != 0, err) }),
			"timeout": scalar(func(v string) (err error) { a.Timeout, err = parseDuration(v); return notZero(a.Timeout != 0, err) }),
			// Nobody could be asked yet, so that a call would wait in vain.
			"approval": missingKey, "wait": missingKey,
		},
		done: func() error {
			if err := action.Check(a); len(a.Schema) > 0 && err != nil {
				return err
			}
			s.secrets.actions = append(s.secrets.actions, a)
			s.policy.Actions = append(s.policy.Actions, name)
			return nil
		},
	}
}

// asJSON is a key whose value is JSON, as text.
func asJSON(to func() *json.RawMessage) *key {
	return scalar(func(v string) error {
		if !json.Valid([]byte(v)) {
			return glovebox.Errorf(glovebox.CodeInvalid, `write JSON as text, such as '{"type":"object"}'`, "this is no JSON")
		}
		*to() = json.RawMessage(v)
		return nil
	})
}
