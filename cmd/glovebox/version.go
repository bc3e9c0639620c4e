package main

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"glovebox"
)

// builtRungs are the rungs that this program can deliver where the machine allows it; doctor tells whether it does.
var builtRungs = []string{string(glovebox.IsolationProcess), string(glovebox.IsolationGVisor),
	string(glovebox.IsolationMicroVM), string(glovebox.IsolationRemote)}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			if a.json {
				return writeJSON(a.out, map[string]any{"version": version, "go": runtime.Version(), "platform": platform,
					"rungs": builtRungs})
			}
			fmt.Fprintf(a.out, "glovebox %s\n%s %s\nrungs: %s\n", version, runtime.Version(), platform,
				strings.Join(builtRungs, ", "))
			return nil
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", a.json, "print JSON")
	return cmd
}
