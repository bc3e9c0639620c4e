package main

import (
	"context"
	"fmt"
	"net/http"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/internal/image"
	"glovebox/internal/imagesource"
	"glovebox/internal/imagestore"
	"glovebox/internal/unpack"
)

// imageSettings are images. Zero fields are the store's own defaults.
type imageSettings struct{ maxSize glovebox.Size }

func (s *settings) imageKeys() *key {
	return &key{keys: map[string]*key{
		"allow": {item: func(v string) error {
			if v == "host" {
				return glovebox.Errorf(glovebox.CodeInvalid, "leave it out", "host may always be used")
			}
			s.policy.Images = append(s.policy.Images, v)
			return imagestore.CheckName(v)
		}},
		"max_size": scalar(func(v string) (err error) {
			s.images.maxSize, err = parseSize(v)
			return notZero(s.images.maxSize != 0, err)
		}),
	}}
}

func (a *app) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Keep runtime images, for run --image NAME",
		Long: "Keep runtime images, for run --image NAME.\n\n" +
			"An image is a folder tree with programs and libraries, shown read-only to the programs that run in it. It is kept\n" +
			"in data_dir under the digest of all that it holds, which is in each result and record. The image host is what this\n" +
			"machine itself has installed.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return glovebox.Errorf(glovebox.CodeInvalid, "`glovebox image --help` lists the commands", "no command is given")
			}
			return unknownVerb(cmd, args[0])
		},
	}
	cmd.AddCommand(a.imageList(), a.imageBuild(), a.imageImport(), a.imageVerify(), a.imageRemove())
	return cmd
}

// imageStore is the store of this machine's images.
func (a *app) imageStore(cmd *cobra.Command) (*imagestore.Store, error) {
	if err := a.ownServer(cmd.CommandPath()); err != nil {
		return nil, err
	}
	s, err := a.settings()
	if err != nil {
		return nil, err
	}
	return imagestore.New(imagestore.Config{Dir: filepath.Join(s.dataDir, "images"), MaxBytes: s.images.maxSize}), nil
}

func (a *app) imageList() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List the images", Args: noArgs}
	cmd.Flags().BoolVar(&a.json, "json", a.json, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		store, err := a.imageStore(cmd)
		if err != nil {
			return err
		}
		list, err := store.List()
		if err != nil {
			return err
		}
		if a.json {
			return writeJSON(a.out, list)
		}
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "NAME\tDIGEST\tSIZE\tENTRIES\tCREATED\tSOURCE")
		if host, err := image.Host(image.Config{}); err == nil {
			_, digest, _ := strings.Cut(host.Identity(), "@")
			fmt.Fprintf(w, "host\t%s\t-\t-\t-\tthis machine\n", line(digest))
		}
		for _, st := range list {
			if st.Problem != "" {
				fmt.Fprintf(w, "%s\t%.19s\t-\t-\t-\t%s\n", line(st.Name), st.Digest, line(st.Problem))
				continue
			}
			fmt.Fprintf(w, "%s\t%.19s\t%v\t%d\t%s\t%s\n", line(st.Name), st.Digest, shown(st.Bytes), st.Entries,
				st.Created.Format(time.DateTime), line(short(st.Source)))
		}
		return w.Flush()
	}
	return cmd
}

// shown is a number of bytes as people say it.
func shown(n int64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%dKiB", (n+1023)>>10)
	}
	return fmt.Sprintf("%dMiB", (n+1<<19)>>20)
}

func (a *app) imageImport() *cobra.Command {
	var name, platform string
	var replace bool
	cfg := imagesource.Config{Proxy: http.ProxyFromEnvironment}
	cmd := &cobra.Command{
		Use:   "import SOURCE",
		Short: "Make an image of an archive, an OCI layout or what a registry has",
		Long: "Make an image of an archive, an OCI layout or what a registry has.\n\n" +
			"SOURCE is an archive of a root file system (tar, also compressed by gzip, zstd or bzip2), what docker save wrote, an\n" +
			"OCI layout (a folder, or an archive of one), or docker://HOST/NAME:TAG for a registry, and no other host is asked.\n" +
			"Of what an image says of itself only its environment is taken.",
		Example: "  glovebox image import rootfs.tar.zst --name tools\n" +
			"  glovebox image import docker://registry.example.com/team/tools:3 --also storage.example.com",
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&name, "name", "", "call it `NAME` (default: the last part of SOURCE)")
	f.BoolVar(&replace, "replace", false, "take the name from another image that has it")
	f.StringVar(&platform, "platform", "linux/"+runtime.GOARCH, "take the image for `OS/ARCH`")
	f.StringArrayVar(&cfg.Hosts, "also", nil, "ask `HOST` too, where the registry leads there (repeat)")
	f.BoolVar(&cfg.PlainHTTP, "plain-http", false, "ask a registry without TLS")
	f.BoolVar(&a.json, "json", a.json, "print JSON")
	cmd.Args = oneArg("SOURCE")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		source := args[0]
		if name == "" {
			name = imagesource.Name(source)
		}
		if err := imagestore.CheckName(name); err != nil {
			return err
		}
		if os, arch, ok := strings.Cut(platform, "/"); !ok || os != "linux" || arch == "" {
			return glovebox.Errorf(glovebox.CodeInvalid, "say such as linux/"+runtime.GOARCH, "--platform cannot be %q",
				short(platform))
		}
		store, err := a.imageStore(cmd)
		if err != nil {
			return err
		}
		cfg.Platform = platform
		ctx, stop := signal.NotifyContext(context.Background(), endings...)
		defer stop()
		st, err := store.Add(ctx, name, source, replace,
			func(ctx context.Context, tree *unpack.Tree, work string) (image.Settings, error) {
				return imagesource.Import(ctx, cfg, source, tree, work)
			})
		if err != nil {
			return cancelled(ctx, err)
		}
		return a.showMade(st)
	}
	return cmd
}

// oneArg demands exactly one argument.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && args[0] != "" {
			return nil
		}
		return glovebox.Errorf(glovebox.CodeInvalid, "say `"+cmd.CommandPath()+" "+what+"`", "%s takes one %s, and %d are given",
			cmd.CommandPath(), what, len(args))
	}
}

// cancelled is context.Canceled where a signal ended the work, whatever came of that.
func cancelled(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Canceled
	}
	return err
}

// showMade tells of an image that was made.
func (a *app) showMade(st *imagestore.Stored) error {
	if a.json {
		return writeJSON(a.out, st)
	}
	fmt.Fprintf(a.out, "%s %s: %d entries, %s\n", line(st.Name), st.Digest, st.Entries, shown(st.Bytes))
	for _, d := range []struct {
		n    int
		what string
	}{
		{st.Dropped.Devices, "device nodes, fifos and sockets were left out"},
		{st.Dropped.Names, "entries with a name that cannot be kept, or hard links to what is not there, were left out"},
		{st.Dropped.Privileges, "files lost a set-user-id or set-group-id bit, or extended attributes"},
		{st.Dropped.Reserved, "entries in folders that are every sandbox's own were left out"},
	} {
		if d.n > 0 {
			fmt.Fprintf(a.out, "  %d %s\n", d.n, d.what)
		}
	}
	fmt.Fprintf(a.out, "run it: glovebox run --image %s …\n", line(st.Name))
	return nil
}

func (a *app) imageRemove() *cobra.Command {
	cmd := &cobra.Command{Use: "rm NAME", Short: "Remove an image that is not in use", Args: oneArg("NAME")}
	cmd.ValidArgsFunction = a.completeImages
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		store, err := a.imageStore(cmd)
		if err != nil {
			return err
		}
		if args[0] == "host" {
			return imagestore.CheckName(args[0])
		}
		return store.Remove(args[0])
	}
	return cmd
}

func (a *app) imageVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [NAME...]",
		Short: "Read all of an image and compare it with its manifest",
		Long: "Read all of an image, or of each, and compare it with its manifest. Exits with 0 only if all holds. An image\n" +
			"that was only touched, as by a copy of data_dir, can be used again after it.",
	}
	cmd.ValidArgsFunction = a.completeImages
	cmd.Flags().BoolVar(&a.json, "json", a.json, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		store, err := a.imageStore(cmd)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			if names, err = store.Names(); err != nil {
				return err
			}
		}
		ctx, stop := signal.NotifyContext(context.Background(), endings...)
		defer stop()
		found := []*imagestore.Verification{}
		for _, name := range names {
			v, err := store.Verify(ctx, name)
			if err != nil {
				return cancelled(ctx, err)
			}
			if found = append(found, v); !v.OK {
				a.exit = exitTampered
			}
		}
		if a.json {
			return writeJSON(a.out, found)
		}
		for _, v := range found {
			a.showVerified(v)
		}
		return nil
	}
	return cmd
}

func (a *app) showVerified(v *imagestore.Verification) {
	for _, p := range v.Problems {
		fmt.Fprintf(a.out, "%s: %s\n", line(v.Name), line(p))
	}
	if v.More > 0 {
		fmt.Fprintf(a.out, "%s: and %d more\n", line(v.Name), v.More)
	}
	if !v.OK {
		fmt.Fprintf(a.out, "%s does not hold: import or build it again, or remove it\n", line(v.Name))
		return
	}
	renewed := ""
	if v.Renewed {
		renewed = "; something had been touched, and it can be used again"
	}
	fmt.Fprintf(a.out, "%s %s holds: %d entries, %s%s\n", line(v.Name), v.Digest, v.Entries, shown(v.Bytes), renewed)
}

// completeImages offers the names of images.
func (a *app) completeImages(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	store, err := a.imageStore(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := store.Names()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) }), cobra.ShellCompDirectiveNoFileComp
}
