// Package mint makes short-lived tokens out of what a broker holds, so that no master key is lent.
package mint
