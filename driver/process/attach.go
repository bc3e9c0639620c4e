package process

import (
	"context"

	"glovebox"
	"glovebox/driver"
)

// Attach refuses.
func (s *sandbox) Attach(context.Context, driver.Network) (driver.NetLink, error) {
	return driver.NetLink{}, glovebox.Errorf(glovebox.CodeUnavailable, "run it without allowed hosts",
		"the process rung has no network")
}
