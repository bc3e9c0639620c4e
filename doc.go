// Package glovebox is the vocabulary of Glovebox, which runs programs that an AI agent wrote where their worst case is a
// messy sandbox.
//
// The package holds words only: what is asked ([Request]), what came of it ([Result]), how a program ended ([Status]), who
// asked ([Principal]), how strong the boundary is ([Isolation]) and the roles a service plays ([Service]). It has no
// behaviour beyond reading and writing those words; package engine implements [Service].
//
// Text that came from inside a sandbox is [Untrusted]. A program's own fate is a [Status]; an [Error] is a refusal or a
// failure of Glovebox itself.
package glovebox
