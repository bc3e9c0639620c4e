// Package brokerd is the broker: the process that holds secrets. It adds them to requests that were judged, here again, and
// does configured actions.
package brokerd
