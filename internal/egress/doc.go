// Package egress says what may leave a sandbox: the one form of a host name, rules, and what they say of a connection or a
// request. It is pure: whoever judges names, connections or requests uses it, so that all agree.
package egress
