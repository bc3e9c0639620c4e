//go:build !amd64

package attack_test

// numbersOfMachine are calls that only this machine has.
var numbersOfMachine = map[string]int{}
