// Package lease has sandboxes ready before somebody asks for them: an interpreter waits in each for its code, behind the
// whole fence. It says who holds which of them until when. A spare is given out once and never comes back.
//
//	kind      all that shapes a sandbox before it has code; only spares of the very same kind serve a request
//	spare     a sandbox of a kind, made by itself or forked from a template
//	template  an interpreter of which spares are forks; closed only after the last of its forks
//	Take      gives a spare out, or says at once that there is none: then the run starts cold
//
// How many spares a kind has follows from how often it was asked for, between a least and a most, and falls to none when
// nobody asks any more. They are made beside the runs, a few at a time and with pauses unless somebody asks right now. Each
// holds memory of the budget of all runs: what it takes it takes without a queue, and gives back when a run waits.
package lease
