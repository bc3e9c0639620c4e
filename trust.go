package glovebox

import "slices"

// Isolation is how strong a boundary is, as rungs of a ladder. The zero value is not a rung.
type Isolation string

// The rungs, weakest first. IsolationAuto is no rung: it lets the trust of a request decide.
const (
	IsolationAuto    Isolation = "auto"
	IsolationProcess Isolation = "process"
	IsolationGVisor  Isolation = "gvisor"
	IsolationMicroVM Isolation = "microvm"
	IsolationRemote  Isolation = "remote"
)

var rungs = []Isolation{IsolationProcess, IsolationGVisor, IsolationMicroVM, IsolationRemote}

// Rank orders the rungs: a higher rank is a boundary further from the machine. It is 0 for auto and -1 for a word that is no
// rung.
func (i Isolation) Rank() int {
	if i == IsolationAuto {
		return 0
	}
	if n := slices.Index(rungs, i); n >= 0 {
		return n + 1
	}
	return -1
}

// Trust says where code came from. The zero value is not a trust.
type Trust string

// The degrees of trust, most trusted first.
const (
	TrustTrusted    Trust = "trusted"    // the operator wrote or reviewed it
	TrustModel      Trust = "model"      // a model wrote it, having read nothing of strangers
	TrustInfluenced Trust = "influenced" // a model wrote it after reading what strangers wrote
	TrustHostile    Trust = "hostile"    // nobody vouches for it
)

var trusts = []Trust{TrustTrusted, TrustModel, TrustInfluenced, TrustHostile}

// Valid reports whether t is one of the four degrees.
func (t Trust) Valid() bool { return slices.Contains(trusts, t) }

// Principal is who asks: it comes from authentication, never from the body of a request. The zero value is nobody and is
// refused.
type Principal struct {
	// Tenant is whose boundary the run belongs to. The owner of a local engine is tenant "local".
	Tenant string `json:"tenant"`
	// Name is who within the tenant, for the record.
	Name string `json:"name"`
	// Owner is true for whoever owns the engine's machine account.
	Owner bool `json:"owner"`
	// Door is how a request came that was not typed at the command line, such as http. What the owner types may open more than
	// what a program of theirs asks for.
	Door string `json:"door,omitempty"`
}

// Typed is true of what the owner asks for at the command line, or in a program that has the engine in it.
func (p Principal) Typed() bool { return p.Owner && p.Door == "" }
