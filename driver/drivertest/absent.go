package drivertest

import (
	"maps"

	"glovebox"
)

// Absent are the cases that a mechanism cannot hold on any machine, each with the reason. docs/drivers.md shows them.
func Absent(rung glovebox.Isolation) map[string]string {
	all := map[string]string{}
	maps.Copy(all, absent[rung])
	return all
}

var absent = map[glovebox.Isolation]map[string]string{}
