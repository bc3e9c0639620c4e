package microvm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"glovebox"
)

// Controls examines this machine for each control of the rung. It starts nothing.
func (d *Driver) Controls(context.Context) []glovebox.Control {
	qemu, err := d.findQEMU()
	all := []glovebox.Control{control("qemu", qemu, err)}
	err = d.findAgent()
	all = append(all, control("glovebox-guest", "found", err))
	version, _, err := d.findKernel()
	all = append(all, control("guest kernel", version, err))
	if err == nil {
		modules, err := findModules(filepath.Join(d.cfg.Kernel, "lib/modules", version))
		all = append(all, control("guest kernel's modules", fmt.Sprintf("%d found", len(modules)), err))
	}
	detail := "/dev/kvm can be opened"
	if d.cfg.Emulated {
		detail = "not used: emulated, which is for tests and no security boundary"
	}
	return append(all, control("kvm", detail, d.findKVM()))
}

// control is one, available if err is nil.
func control(name, detail string, err error) glovebox.Control {
	c := glovebox.Control{Isolation: glovebox.IsolationMicroVM, Name: name, Available: err == nil, Required: true,
		Detail: detail}
	var known *glovebox.Error
	switch {
	case errors.As(err, &known):
		c.Detail, c.Fix = known.Public, known.Fix
	case err != nil:
		c.Detail, c.Fix = err.Error(), "mend what the text says"
	}
	return c
}
