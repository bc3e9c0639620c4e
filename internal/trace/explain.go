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
	if errors.Is(err, errBroken) {
		return &glovebox.Error{Code: glovebox.CodeUnavailable, Op: op, Err: err, Fix: fixBroken,
			Public: "the trace is not available, so nothing is run: its log does not hold, somebody changed it"}
	}
	var e *store.Error
	if !errors.As(err, &e) {
		return glovebox.Internal(op, err)
	}
	return &glovebox.Error{Code: glovebox.CodeUnavailable, Op: op, Fix: e.Fix, Err: err,
		Public: "the trace is not available, so nothing is run: " + faults[e.Fault]}
}

const fixBroken = "`glovebox trace verify` names the first record that does not hold; restore the data_dir from a backup, " +
	"or set data_dir to a new folder and keep the old one to read"

// notRecorded makes the error of an end that did not get to the disk. Something has run by then, so that it is neither a
// refusal nor a matter of the data_dir alone: it is internal, whatever is wrong, with what mends it. What is said about the
// run itself (it has an end, there is none of its id) passes unchanged; it is nil for a nil err.
func notRecorded(op string, err error) error {
	if err == nil {
		return nil
	}
	var known *glovebox.Error
	if errors.As(err, &known) && known.Code != glovebox.CodeUnavailable {
		return known
	}
	failure := &glovebox.Error{Code: glovebox.CodeInternal, Op: op, Err: err, Public: "the run's end could not be recorded",
		Fix: "run `glovebox doctor`; the engine's log names the cause"}
	var e *store.Error
	switch {
	case known != nil:
		failure.Public, failure.Fix = failure.Public+": "+known.Public, known.Fix
	case errors.Is(err, errBroken):
		failure.Public, failure.Fix = failure.Public+": the log of the trace does not hold, somebody changed it", fixBroken
	case errors.As(err, &e):
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
	store.FaultNoFolder: "the data_dir is not a folder and cannot be made one",
}
