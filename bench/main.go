// Command bench times whole commands, from start to exit: Python without protection, in bubblewrap, and in Glovebox. The
// commands take turns, so that what else the machine does hits all of them alike, and only ratios within one run of this
// program mean anything. It prints a table in Markdown.
//
//	go run ./bench [-n ROUNDS] [-glovebox bin/glovebox]
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	rounds := flag.Int("n", 40, "how often each command is run")
	glovebox := flag.String("glovebox", "bin/glovebox", "the program to measure")
	flag.Parse()
	if err := run(*rounds, *glovebox); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// subject is one command and what was measured of it.
type subject struct {
	name string
	argv []string
	took []time.Duration
	rss  int64 // most resident bytes of the started process itself
}

func run(rounds int, glovebox string) error {
	dir, err := os.MkdirTemp("", "glovebox-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	config := filepath.Join(dir, "glovebox.yaml")
	if err := os.WriteFile(config, []byte("data_dir: "+dir+"/data\n"), 0o600); err != nil {
		return err
	}
	const python, code = "/usr/bin/python3", "print(1)"
	subjects := []*subject{
		{name: "python3, unprotected", argv: []string{python, "-I", "-c", code}},
		{name: "python3 in bubblewrap", argv: append(bubblewrap(), python, "-I", "-c", code)},
		{name: "glovebox run, process rung", argv: []string{glovebox, "--config", config, "run", "--trust", "model",
			"--isolation", "process", "-c", code}},
		{name: "glovebox exec /bin/true", argv: []string{glovebox, "--config", config, "exec", "--trust", "model",
			"--isolation", "process", "--", "/bin/true"}},
		{name: "glovebox version", argv: []string{glovebox, "version"}},
	}
	for round := range rounds + 2 {
		for _, s := range subjects {
			if err := s.measure(round >= 2); err != nil { // the first rounds fill caches
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	report(subjects, rounds)
	return nil
}

func bubblewrap() []string {
	argv := []string{"bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr"}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if target, err := os.Readlink("/" + name); err == nil {
			argv = append(argv, "--symlink", target, "/"+name)
		} else if _, err := os.Stat("/" + name); err == nil {
			argv = append(argv, "--ro-bind", "/"+name, "/"+name)
		}
	}
	return append(argv, "--proc", "/proc", "--dev", "/dev")
}

func (s *subject) measure(count bool) error {
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return err
	}
	if took := time.Since(start); count {
		s.took = append(s.took, took)
	}
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		s.rss = max(s.rss, usage.Maxrss<<10)
	}
	return nil
}

func report(subjects []*subject, rounds int) {
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("%d rounds, taking turns; %d CPUs, load %s\n\n",
		rounds, runtime.NumCPU(), strings.Fields(string(load) + " ?")[0])
	fmt.Println("| command | median ms | p95 ms | × bubblewrap | most memory |")
	fmt.Println("|---|---|---|---|---|")
	reference := median(subjects[1].took)
	for _, s := range subjects {
		slices.Sort(s.took)
		fmt.Printf("| %s | %.1f | %.1f | %.2f | %.1f MiB |\n", s.name, ms(median(s.took)), ms(s.took[len(s.took)*95/100]),
			float64(median(s.took))/float64(reference), float64(s.rss)/(1<<20))
	}
}

func median(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
