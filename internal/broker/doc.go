// Package broker has the words of lending secrets: what is configured, what a run is lent, how a placeholder is found. It is
// also the client's end of a broker, which is a process of its own.
package broker
