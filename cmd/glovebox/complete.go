package main

import (
	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/internal/egress"
	"glovebox/policy"
)

// completeCommands mends the command that cobra makes for shells: one that it does not know is an error.
func (a *app) completeCommands(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Args = cobra.ArbitraryArgs
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				if len(args) == 0 {
					return glovebox.Errorf(glovebox.CodeInvalid, "say glovebox completion bash, zsh, fish or powershell",
						"no shell is named")
				}
				return unknownVerb(cmd, args[0])
			}
		}
	}
}

// completeFlags offers the values of the flags that take one of a few words.
func completeFlags(cmd *cobra.Command) {
	for name, words := range map[string][]cobra.Completion{
		"lang":      {"python", "node", "bash"},
		"trust":     {"trusted", "model", "influenced", "hostile"},
		"isolation": append([]cobra.Completion{"auto"}, builtRungs...),
	} {
		// It fails for a flag that does not exist, or twice for one that does.
		fixed := cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
		if err := cmd.RegisterFlagCompletionFunc(name, fixed); err != nil {
			panic(err)
		}
	}
}

// completeEgress offers the hosts of the configuration's rules for --allow, and its secrets with their hosts for --secret.
func (a *app) completeEgress(cmd *cobra.Command) {
	from := func(list func(policy.Config) []cobra.Completion) cobra.CompletionFunc {
		return func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			s, err := a.settings()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			return list(s.policy), cobra.ShellCompDirectiveNoFileComp
		}
	}
	for name, list := range map[string]func(policy.Config) []cobra.Completion{
		"allow": func(c policy.Config) (all []cobra.Completion) {
			for _, r := range c.Egress.Rules {
				if _, err := egress.ParseAsk(r.Host); err == nil && !r.Deny {
					all = append(all, r.Host)
				}
			}
			return all
		},
		"secret": func(c policy.Config) (all []cobra.Completion) {
			for _, secret := range c.Secrets {
				for _, host := range secret.Hosts {
					all = append(all, secret.Name+"@"+host)
				}
			}
			return all
		},
	} {
		if err := cmd.RegisterFlagCompletionFunc(name, from(list)); err != nil {
			panic(err)
		}
	}
}

// completeRuns offers the ids of the latest runs, with what ran.
func (a *app) completeRuns(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	svc, err := a.service()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer svc.Close()
	list, err := svc.Traces(cmd.Context(), a.owner(), glovebox.TraceQuery{Limit: 50})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var ids []cobra.Completion
	for i := range list {
		ids = append(ids, cobra.CompletionWithDesc(list[i].ID, programOf(&list[i], 40)))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
