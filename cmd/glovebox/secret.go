package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/internal/broker"
	"glovebox/internal/egress"
	"glovebox/policy"
)

// secretSettings are secrets: where they are and for which requests they are lent, and no value.
type secretSettings struct {
	specs   []broker.Spec
	actions []broker.Action
	getenv  variables // for the sources that are some
}

// variables reads those of this process. A digest of settings says nothing of them.
type variables func(string) string

// GoString implements fmt.GoStringer.
func (variables) GoString() string { return "variables" }

// secret reads one of secrets.
func (s *settings) secret(name string) *element {
	c := broker.Spec{Name: name}
	text := func(to *string) *key { return scalar(func(v string) error { *to = v; return nil }) }
	place := func(to *broker.Place) *key { return scalar(func(v string) error { *to = broker.Place(v); return nil }) }
	return &element{
		keys: map[string]*key{
			"file": text(&c.File), "env": text(&c.Env), "command": words(&c.Command), "pass": words(&c.Pass),
			"hosts": words(&c.Hosts), "methods": some(words(&c.Methods)), "paths": some(words(&c.Paths)),
			"attach": place(&c.Attach), "placeholder": place(&c.Placeholder),
			"header": text(&c.Header), "prefix": text(&c.Prefix), "query": text(&c.Query), "user": text(&c.User),
			"region": text(&c.Region), "service": text(&c.Service), "access_key_id": text(&c.AccessKeyID),
			"shape": text(&c.Shape), "on_violation": text(&c.OnViolation), "foreign": text(&c.Foreign),
			"strip_headers": words(&c.StripHeaders), "strip_query": words(&c.StripQuery), "mint": mintKeys(&c.Mint),
		},
		done: func() error {
			all := append(s.secrets.specs, c)
			if err := broker.CheckAll(all); err != nil {
				return err
			}
			if err := checkSecretFile(&c); err != nil {
				return err
			}
			s.secrets.specs = all
			if !c.Kept() {
				s.policy.Secrets = append(s.policy.Secrets, policy.Secret{Name: name, Hosts: c.Hosts})
			}
			return nil
		},
	}
}

// checkSecretFile refuses a file that others can read. One that is not there may come: `secret check` tells, and who asks
// for the secret is refused.
func checkSecretFile(c *broker.Spec) error {
	if c.File == "" {
		return nil
	}
	info, err := os.Lstat(c.File)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return nil
	case err != nil:
		return fileError(c.File, err)
	}
	return broker.CheckFile(c.Name, info, os.Geteuid())
}

// brokerProgram is beside the running program.
func brokerProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", glovebox.Internal("find the program", err)
	}
	return filepath.Join(filepath.Dir(self), "glovebox-broker"), nil
}

// broker makes the client of a broker, which is started when something is lent first.
func (s *settings) broker(log *slog.Logger) (*broker.Client, error) {
	program, err := brokerProgram()
	if err != nil {
		return nil, err
	}
	cfg := broker.Config{Program: program, Secrets: s.secrets.specs, Actions: s.secrets.actions,
		Environ: map[string]broker.Secret{}, Dir: s.dataDir,
		Log: log}
	for i := range s.secrets.specs {
		for _, name := range append([]string{s.secrets.specs[i].Env}, s.secrets.specs[i].Pass...) {
			if v := s.secrets.getenv(name); v != "" {
				cfg.Environ[name] = broker.NewSecret(v)
			}
		}
	}
	reach, err := s.gateway.reach()
	if err != nil {
		return nil, err
	}
	cfg.Network = broker.Network{Resolvers: reach.Resolvers, ProxyResolves: reach.ProxyResolves}
	if reach.Proxy != nil {
		cfg.Network.Proxy = broker.NewSecret(reach.Proxy.String())
	}
	for _, cidr := range s.policy.Egress.AllowPrivate {
		network, err := egress.ParsePrivate(cidr)
		if err != nil {
			return nil, err
		}
		cfg.Network.Private = append(cfg.Network.Private, network)
	}
	if cfg.Roots, err = s.gateway.authorities(); err != nil {
		return nil, err
	}
	return broker.New(cfg)
}

func (a *app) secretCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secret",
		Short: "Tell which secrets can be lent, and whether they can be read",
		Long: "Tell which secrets can be lent, and whether they can be read.\n\n" +
			"Secrets are named in glovebox.yaml, with where each is and for which requests it is added. No command shows a value,\n" +
			"and no program in a sandbox has one: it has a placeholder, which is worth nothing elsewhere (docs/secrets.md).",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return glovebox.Errorf(glovebox.CodeInvalid, "`glovebox secret --help` lists the commands", "no command is given")
			}
			return unknownVerb(cmd, args[0])
		},
	}
	cmd.AddCommand(a.secretList(), a.secretCheck())
	return cmd
}

// secretShown is what is shown of a secret.
type secretShown struct {
	Name    string   `json:"name"`
	Source  string   `json:"source"`
	Hosts   []string `json:"hosts"`
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	Attach  string   `json:"attach,omitempty"`
	Place   string   `json:"placeholder,omitempty"`
}

// secretChecked is what came of trying to read one.
type secretChecked struct {
	Name   string `json:"name"`
	Source string `json:"source"`
	OK     bool   `json:"ok"`
	Why    string `json:"why,omitempty"`
	Fix    string `json:"fix,omitempty"`
}

func (a *app) secretList() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List the secrets: names, sources, hosts", Args: noArgs}
	cmd.Flags().BoolVar(&a.json, "json", a.json, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.ownServer(cmd.CommandPath()); err != nil {
			return err
		}
		s, err := a.settings()
		if err != nil {
			return err
		}
		list := make([]secretShown, 0, len(s.secrets.specs))
		for i := range s.secrets.specs {
			c := &s.secrets.specs[i]
			list = append(list, secretShown{c.Name, c.Source(), c.Hosts, c.Methods, c.Paths, string(c.Attach), string(c.Placeholder)})
		}
		if a.json {
			return writeJSON(a.out, list)
		}
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "NAME\tSOURCE\tHOSTS\tLENT")
		for _, c := range list {
			how := c.Attach
			if c.Place != "" {
				how = "placeholder, " + c.Place
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", line(c.Name), line(c.Source), line(strings.Join(c.Hosts, ", ")), line(how))
		}
		return w.Flush()
	}
	return cmd
}

func (a *app) secretCheck() *cobra.Command {
	cmd := &cobra.Command{Use: "check", Short: "Try to read each secret, and say what is wrong; no value is shown",
		Args: noArgs}
	cmd.Flags().BoolVar(&a.json, "json", a.json, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.ownServer(cmd.CommandPath()); err != nil {
			return err
		}
		s, err := a.settings()
		if err != nil {
			return err
		}
		list, err := a.checkSecrets(cmd.Context(), &s)
		if err != nil {
			return err
		}
		if a.json {
			return writeJSON(a.out, list)
		}
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "NAME\tSOURCE\tSTATE")
		for _, c := range list {
			state := "ok"
			if !c.OK {
				state = c.Why + "; fix: " + c.Fix
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", line(c.Name), line(c.Source), line(state))
		}
		return w.Flush()
	}
	return cmd
}

// checkSecrets has a broker read each. The command fails where one cannot be read.
func (a *app) checkSecrets(ctx context.Context, s *settings) (list []secretChecked, err error) {
	list = []secretChecked{}
	if len(s.secrets.specs) == 0 {
		return list, nil
	}
	client, err := s.broker(logger(a.errs))
	if err != nil {
		return nil, err
	}
	defer func() {
		if closing := client.Close(); closing != nil && err == nil {
			err = glovebox.Internal("close the broker", closing)
		}
	}()
	checked, err := client.Check(ctx)
	if err != nil {
		return nil, err
	}
	for i, c := range checked {
		one := secretChecked{Name: c.Name, Source: s.secrets.specs[i].Source(), OK: c.Error == nil}
		if c.Error != nil {
			one.Why, one.Fix = c.Error.Message, c.Error.Fix
			a.exit = glovebox.CodeUnavailable.ExitCode()
		}
		list = append(list, one)
	}
	return list, nil
}

// said is all that the configuration says of secrets, for comparing.
func (s *secretSettings) said() string {
	b, err := json.Marshal(s.specs)
	if err != nil {
		return "" // texts and lists can be marshalled
	}
	return string(b)
}
