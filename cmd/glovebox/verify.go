package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/client"
)

// exitTampered is what trace verify exits with when something does not hold.
const exitTampered = 1

func (a *app) traceVerify() *cobra.Command {
	var words []string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check every record, signature and kept byte of the trace",
		Long: "Check every record, signature and kept byte of the trace, and name the first record that was changed, removed,\n" +
			"reordered or cut off. Exits with 0 only if all of it holds. A tree head that was kept elsewhere also shows a trace\n" +
			"that was rewritten or replaced as a whole, up to that head: --head takes trace.seq and trace.hash of any result.",
		Args: noArgs,
	}
	f := cmd.Flags()
	f.StringArrayVar(&words, "head", nil, "compare with tree head `SEQ:HASH` from outside (repeat)")
	f.BoolVar(&a.json, "json", a.json, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		var heads []glovebox.TraceRef
		for _, word := range words {
			head, err := headFlag(word)
			if err != nil {
				return err
			}
			heads = append(heads, head)
		}
		svc, err := a.service()
		if err != nil {
			return err
		}
		defer func() { err = closed(svc, err) }()
		_, served := svc.(*client.Client)
		published, err := a.publishedHeads(served)
		if err != nil {
			return err
		}
		heads = append(heads, published...)
		ctx, stop := signal.NotifyContext(context.Background(), endings...)
		defer stop()
		v, err := svc.Verify(ctx, a.owner(), heads)
		if err != nil && ctx.Err() != nil {
			return context.Canceled
		}
		if err != nil {
			return err
		}
		if !v.OK {
			a.exit = exitTampered
		}
		if a.json {
			return writeJSON(a.out, v)
		}
		return showVerification(a.out, v)
	}
	return cmd
}

// headFlag reads SEQ:HASH. Spaces that copying left in it mean nothing.
func headFlag(word string) (glovebox.TraceRef, error) {
	seq, hash, ok := strings.Cut(strings.Join(strings.Fields(word), ""), ":")
	n, err := strconv.ParseInt(seq, 10, 64)
	if !ok || err != nil || n < 1 {
		return glovebox.TraceRef{}, glovebox.Errorf(glovebox.CodeInvalid,
			"say --head SEQ:HASH with trace.seq and trace.hash exactly as a result has them", "%q is no tree head", short(word))
	}
	return glovebox.TraceRef{Seq: n, Hash: hash}, nil
}

// publishedHeads reads the file that the configuration sends heads to, which is outside of the trace. It says nothing of the
// trace of a server, which has a configuration of its own.
func (a *app) publishedHeads(served bool) ([]glovebox.TraceRef, error) {
	s, err := a.settings()
	if err != nil || s.trace.HeadsFile == "" {
		return nil, err
	}
	if served {
		say(a.errs, "trace.heads.file is not compared with the trace of a server: pass its heads with --head")
		return nil, nil
	}
	f, err := os.Open(s.trace.HeadsFile)
	if errors.Is(err, fs.ErrNotExist) {
		say(a.errs, "there is no file "+s.trace.HeadsFile+" (trace.heads.file): nothing is compared with it")
		return nil, nil
	}
	if err != nil {
		return nil, fileError(s.trace.HeadsFile, err)
	}
	defer f.Close()
	var heads []glovebox.TraceRef
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		head, err := headFlag(lines.Text())
		if err != nil {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "restore "+s.trace.HeadsFile+" from a backup, or move it away",
				"line %d of trace.heads.file is no tree head", len(heads)+1)
		}
		heads = append(heads, head)
	}
	if err := lines.Err(); err != nil {
		return nil, fileError(s.trace.HeadsFile, err)
	}
	return heads, nil
}

func showVerification(out io.Writer, v *glovebox.Verification) error {
	w := bufio.NewWriter(out)
	print := func(format string, args ...any) { fmt.Fprintln(w, line(fmt.Sprintf(format, args...))) }
	for i, p := range v.Problems {
		first := ""
		if i == 0 {
			first = "first: "
		}
		run := ""
		if p.Run != "" {
			run = ", " + p.Run
		}
		print("%srecord %d%s: %s: %s", first, p.Seq, run, p.Kind, p.Text)
	}
	if v.More > 0 {
		print("and %d more", v.More)
	}
	for _, e := range v.Erased {
		print("erased: records %d to %d: what they held was erased by retention; the rest of them is proved", e[0], e[1])
	}
	if v.Found > 0 {
		print("found: %d records were written before there was a log, and sealed later as they were found", v.Found)
	}
	print("%d records, %d kept outputs and artifacts, %d heads from outside", v.Records, v.Blobs, v.Heads)
	print("key: %s", v.Key)
	if v.Records > 0 {
		print("head: %d:%s", v.Head.Seq, v.Head.Hash)
	}
	if v.OK {
		print("all of it holds")
	} else {
		print("it does not hold")
	}
	return w.Flush()
}

// exportTogether bounds how many runs are in memory at a time.
const exportTogether = 50

func (a *app) traceExport() *cobra.Command {
	var filter traceFilter
	limit := 0
	cmd := &cobra.Command{Use: "export", Short: "Print whole records as lines of JSON, newest first", Args: noArgs}
	cmd.Flags().IntVar(&limit, "limit", 0, "at most `N` runs (default all)")
	filter.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if f := cmd.Flags().Lookup("limit"); f.Changed && limit < 1 {
			return glovebox.Errorf(glovebox.CodeInvalid, "leave it out for all runs", "--limit %d is out of range", limit)
		}
		if err := filter.complete(cmd); err != nil {
			return err
		}
		svc, err := a.service()
		if err != nil {
			return err
		}
		defer func() { err = closed(svc, err) }()
		ctx, stop := signal.NotifyContext(context.Background(), endings...)
		defer stop()
		w := bufio.NewWriter(a.out)
		if err := a.export(ctx, svc, w, filter.query, limit); err != nil {
			if ctx.Err() != nil {
				err = context.Canceled
			}
			return err
		}
		return w.Flush()
	}
	return cmd
}

// export writes records as they are read: a list has what to ask for, which is then read one by one, whole.
func (a *app) export(ctx context.Context, svc glovebox.Service, w io.Writer, q glovebox.TraceQuery, limit int) error {
	for left := limit; ; {
		q.Limit = exportTogether
		if limit > 0 {
			q.Limit = min(q.Limit, left)
		}
		list, err := svc.Traces(ctx, a.owner(), q)
		if err != nil {
			return err
		}
		for i := range list {
			if err := ctx.Err(); err != nil {
				return glovebox.Errorf(glovebox.CodeInternal, "export again", "the export was ended before it was whole")
			}
			record, err := svc.Trace(ctx, a.owner(), list[i].ID)
			if err != nil {
				return err
			}
			if err := writeJSON(w, record); err != nil {
				return err
			}
		}
		left -= len(list)
		if len(list) < q.Limit || limit > 0 && left == 0 {
			return nil
		}
		q.Before = list[len(list)-1].ID
	}
}
