//go:build !amd64

package attack_test

// numbersOfMachine are calls that only this machine has.
var numbersOfMachine = map[string]int{}

// waitsOfMachine are calls that only this machine has and that wait or end the caller.
var waitsOfMachine []int
