package trace

import (
	"errors"

	"glovebox"
	"glovebox/internal/store"
)

// Explain makes the error of a step of the store or the trace one that a caller may see. What is wrong with the data_dir is
// unavailable, with the command that mends it, which names the folder; an *[glovebox.Error] passes unchanged; the rest is
// internal. It is nil for a nil err.
func Explain(op string, err error) error {
	if err == nil {
		return nil
	}
	var known *glovebox.Error
	if errors.As(err, &known) {
		return known
	}
	var e *store.Error
	if !errors.As(err, &e) {
		return glovebox.Internal(op, err)
	}
	return &glovebox.Error{Code: glovebox.CodeUnavailable, Op: op, Fix: e.Fix, Err: err,
		Public: "the trace is not available, so nothing is run: " + faults[e.Fault]}
}

// notRecorded makes the error of an end that did not get to the disk. Something has run by then, so that it is neither a
// refusal nor a matter of the data_dir alone: it is internal, whatever is wrong, with what mends it. An *[glovebox.Error]
// passes unchanged; it is nil for a nil err.
func notRecorded(op string, err error) error {
	if err == nil {
		return nil
	}
	var known *glovebox.Error
	if errors.As(err, &known) {
		return known
	}
	failure := &glovebox.Error{Code: glovebox.CodeInternal, Op: op, Err: err, Public: "the run's end could not be recorded",
		Fix: "run `glovebox doctor`; the engine's log names the cause"}
	var e *store.Error
	if errors.As(err, &e) {
		failure.Public, failure.Fix = failure.Public+": "+faults[e.Fault], e.Fix
	}
	return failure
}

var faults = map[store.Fault]string{
	store.FaultForeign:  "the data_dir is not this user's alone",
	store.FaultReadOnly: "the data_dir cannot be written to",
	store.FaultFull:     "the disk of the data_dir is full",
	store.FaultDamaged:  "the database in the data_dir is damaged",
	store.FaultNewer:    "the data_dir was written by a later version of Glovebox",
	store.FaultBusy:     "other processes hold the data_dir",
	store.FaultNoFolder: "the data_dir is not a folder",
}
