package glovebox

import (
	"errors"
	"fmt"
)

// Code classifies a failure of Glovebox or a refusal before start. The set is closed; Codes lists it with how each door
// shows it.
type Code string

// The codes.
const (
	CodeInvalid     Code = "invalid"     // the request is malformed: change it
	CodeDenied      Code = "denied"      // the policy does not permit it: ask the operator
	CodeUnavailable Code = "unavailable" // this machine cannot give it: mend the machine
	CodeExhausted   Code = "exhausted"   // no room now: try later
	CodeNotFound    Code = "not_found"   // no such thing, or not the caller's
	CodeConflict    Code = "conflict"    // it contradicts what is there
	CodeInternal    Code = "internal"    // Glovebox failed
)

// HTTPStatus is the status an HTTP door answers c with; an unknown code is 500.
func (c Code) HTTPStatus() int { return codes[c].http }

// ExitCode is what the command line exits with for c: 126 where nothing could start, else 125, as env(1) and timeout(1)
// do.
func (c Code) ExitCode() int { return codes[c].exit }

var codes = map[Code]struct{ http, exit int }{
	CodeInvalid:     {400, 125},
	CodeDenied:      {403, 126},
	CodeUnavailable: {503, 126},
	CodeExhausted:   {429, 125},
	CodeNotFound:    {404, 125},
	CodeConflict:    {409, 125},
	CodeInternal:    {500, 125},
}

// Error is a failure of Glovebox or a refusal before start. What a program does is never an Error but a [Status].
type Error struct {
	Code Code
	// Op names the step that failed, for the operator's log.
	Op string
	// Public says what happened and why, for the caller. It holds no path of the host, no secret and no text from inside a
	// sandbox.
	Public string
	// Fix is what the caller can do, as exactly as can be said: a command, a flag, a line of configuration.
	Fix string
	// Err is the cause. It never leaves the host.
	Err error
}

// Error is the operator's view: it includes the cause.
func (e *Error) Error() string {
	s := e.Public
	if e.Op != "" {
		s = e.Op + ": " + s
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error with a public message; %w is not for it: set Err for a cause.
func Errorf(code Code, fix, format string, args ...any) *Error {
	return &Error{Code: code, Public: fmt.Sprintf(format, args...), Fix: fix}
}

// Internal wraps the failure of a step of Glovebox itself, whose cause stays on the host. An *Error passes unchanged, since
// it already says what the caller may know. It is nil for a nil err.
func Internal(op string, err error) error {
	if err == nil {
		return nil
	}
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	return &Error{Code: CodeInternal, Op: op, Public: op + " failed inside Glovebox", Err: err,
		Fix: "run `glovebox doctor`; the engine's log names the cause"}
}
