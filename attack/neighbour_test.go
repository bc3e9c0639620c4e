package attack_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// neighbour is a run of somebody else that is alive during all tests, with canaries in its files, environment and arguments
// and with listeners that greet with one.
type neighbour struct {
	cmd   *exec.Cmd
	ended chan error
	id    string // name of its folder in data_dir/runs
	port  int
	name  string // of its abstract unix socket
}

const neighbourPort = 28471 // in its own network namespace, so that it cannot be taken

func startNeighbour(l *laboratory) (*neighbour, error) {
	config := filepath.Join(l.dir, "neighbour.yaml")
	ids := idRange{l.pool.start + l.pool.count, l.pool.count}
	if err := l.writeConfig(config, l.cgroup+"-neighbour", ids); err != nil {
		return nil, err
	}
	n := &neighbour{ended: make(chan error, 1), port: neighbourPort, name: "glovebox-attack-neighbour"}
	n.cmd = l.glovebox(context.Background(), "run", "--config", config, "--trust", "model", "--isolation", "process",
		"--wall", "50m", "--env", "NEIGHBOUR="+l.secret("neighbour env"), "--env",
		"FILE_TEXT="+l.secret("neighbour file"),
		"--env", "BANNER="+l.secret("banner"), filepath.Join("programs", "neighbour.py"), "--",
		l.secret("neighbour argument"), fmt.Sprint(n.port), n.name)
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	n.cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM // where the tests are killed
	var complaints strings.Builder
	n.cmd.Stderr = &complaints
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	go func() { n.ended <- n.cmd.Wait() }()
	if line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("it said %q and %q", line, complaints.String()), n.stop())
	}
	runs, _ := os.ReadDir(filepath.Join(l.data, "runs"))
	if len(runs) == 1 {
		n.id = runs[0].Name()
	}
	return n, nil
}

// stop ends it and tells when it had ended before, which no other run may cause.
func (n *neighbour) stop() error {
	select {
	case err := <-n.ended:
		return fmt.Errorf("the neighbour ended by itself: %w", err)
	default:
	}
	n.cmd.Process.Signal(syscall.SIGINT)
	select {
	case err := <-n.ended:
		if code := n.cmd.ProcessState.ExitCode(); code != 130 {
			return fmt.Errorf("the neighbour ended with code %d: %w", code, err)
		}
		return nil
	case <-time.After(10 * time.Second):
		n.cmd.Process.Kill()
		return errors.New("the neighbour did not end when asked")
	}
}
