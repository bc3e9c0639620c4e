package policy

import (
	"slices"

	"glovebox"
	"glovebox/internal/spelling"
)

// maxActions bounds the actions of one request.
const maxActions = 64

// grantActions is what a request may have done for it: of the configured actions those that it names.
func (p *Policy) grantActions(names []string) ([]string, *glovebox.Decision) {
	if len(names) > maxActions {
		return nil, invalid("ask for fewer", "actions has %d names and may have %d", len(names), maxActions)
	}
	var granted []string
	for _, name := range names {
		switch {
		case !slices.Contains(p.actions, name):
			fix := "have the operator add it to actions in glovebox.yaml"
			if near := spelling.Nearest(name, p.actions); near != "" {
				fix = "did you mean " + near + "?"
			}
			return nil, refuse("action.unknown", glovebox.CodeDenied, fix, "there is no action %s", quote(name))
		case !slices.Contains(granted, name):
			granted = append(granted, name)
		}
	}
	return granted, nil
}
