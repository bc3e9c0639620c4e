// Package engine runs programs: it takes a run through its stages in order and implements glovebox.Service.
//
//	policy    decide; a refusal is recorded and ends here
//	inputs    opened once, copied and hashed; what was judged is what is shown
//	start     the start record is committed while the driver makes the sandbox
//	release   only when both are done is the code put into the sandbox and started
//	watch     limits, cancel and output, until the last of the tree is dead
//	end       verdict, outputs collected, end record committed
//	after     the sandbox and the run's folder are removed beside the caller
//
// Every start record gets exactly one end record, whatever fails.
package engine
