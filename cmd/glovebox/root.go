package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"glovebox"
	"glovebox/internal/spelling"
)

// root builds the tree of verbs. It costs microseconds: flags are declared, nothing is opened or read.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "glovebox",
		Short: "Run code you did not write where its worst case is a messy sandbox",
		Example: "  glovebox run -c 'print(sum(range(10)))'\n" +
			"  glovebox run analyse.py --input sales.csv --output out -- --year 2025\n" +
			"  glovebox exec --memory 1GiB -- sqlite3 /inputs/shop.db .tables\n" +
			"  glovebox doctor",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return glovebox.Errorf(glovebox.CodeInvalid, "`glovebox --help` lists the commands", "no command is given")
			}
			return unknownVerb(cmd, args[0])
		},
	}
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.StringVar(&a.config, "config", "", "configuration `FILE` in place of the usual places")
	f.StringVar(&a.server, "server", "", "use the server at `URL`: unix:/path (also GLOVEBOX_SERVER)")
	f.BoolVar(&a.local, "local", false, "never use a server")
	root.AddCommand(a.runCommand(), a.execCommand(), a.traceCommand(), a.doctorCommand(), a.attackCommand(), a.benchCommand(),
		a.serveCommand(), a.imageCommand(), a.policyCommand(), a.secretCommand(), a.versionCommand())
	for _, name := range []string{
		"mcp", "session", "token", "budget",
	} {
		root.AddCommand(missingCommand(name))
	}
	root.SetHelpCommand(helpCommand(root))
	a.completeCommands(root)
	return root
}

// helpCommand shows the help of a verb, and refuses one that does not exist.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Tell what a command does",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return unknownVerb(cmd, append(rest, args...)[0])
			}
			return cmd.Help()
		},
	}
}

// missingCommand is a verb that is known and not built: refused by name, with whatever follows it, and not listed.
func missingCommand(name string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return unbuilt(cmd.CommandPath(), "`glovebox --help` lists the commands there are")
		},
	}
}

// unknownVerb names the verb that was most likely meant.
func unknownVerb(cmd *cobra.Command, word string) error {
	var known []string
	for _, c := range cmd.Commands() {
		known = append(known, c.Name())
	}
	fix := "`" + cmd.CommandPath() + " --help` lists the commands"
	if n := spelling.Nearest(word, known); n != "" {
		fix = "did you mean `" + cmd.CommandPath() + " " + n + "`?"
	}
	return glovebox.Errorf(glovebox.CodeInvalid, fix, "%q is no command of %s", short(word), cmd.CommandPath())
}

// flagError says what is wrong with a flag and names the nearest known one.
func flagError(cmd *cobra.Command, err error) error {
	var (
		known  *glovebox.Error
		absent *pflag.NotExistError
		value  *pflag.InvalidValueError
		none   *pflag.ValueRequiredError
	)
	help := "`" + cmd.CommandPath() + " --help` lists the flags"
	if cmd.Name() == "run" {
		help += "; what is meant for the program goes after --"
	}
	words := cmd.Flags().Args()
	switch {
	case cmd.HasSubCommands() && len(words) > 0:
		return unknownVerb(cmd, words[0]) // the flag is of a verb that does not exist
	case errors.As(err, &known) && errors.As(err, &value):
		named := *known
		named.Public = "--" + value.GetFlag().Name + ": " + known.Public
		return &named
	case errors.As(err, &known):
		return known
	case errors.As(err, &absent):
		word := absent.GetSpecifiedName()
		if in := absent.GetSpecifiedShortnames(); in != "" {
			return glovebox.Errorf(glovebox.CodeInvalid, help, "there is no flag -%s in -%s", short(word), short(in))
		}
		if word == "version" {
			return glovebox.Errorf(glovebox.CodeInvalid, "say `glovebox version`", "there is no flag --version")
		}
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if n := spelling.Nearest(word, names); n != "" {
			help = "did you mean --" + n + "?"
		}
		return glovebox.Errorf(glovebox.CodeInvalid, help, "there is no flag --%s", short(word))
	case errors.As(err, &value):
		return glovebox.Errorf(glovebox.CodeInvalid, help, "--%s cannot be %q", value.GetFlag().Name, short(value.GetValue()))
	case errors.As(err, &none):
		return glovebox.Errorf(glovebox.CodeInvalid, help, "--%s needs a value", strings.TrimLeft(none.GetFlag().Name, "-"))
	}
	return glovebox.Errorf(glovebox.CodeInvalid, help, "%s", short(err.Error()))
}

// noArgs refuses arguments of a verb that takes none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return glovebox.Errorf(glovebox.CodeInvalid, "leave it out", "%s takes no arguments, and %q is one", cmd.CommandPath(),
		short(args[0]))
}

// short bounds a word of the command line that a message quotes.
func short(s string) string {
	const most = 120
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
