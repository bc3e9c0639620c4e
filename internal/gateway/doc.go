// Package gateway is the only way out of a sandbox. It is born denying and opened by a grant.
package gateway
