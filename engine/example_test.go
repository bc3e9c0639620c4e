package engine_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"testing"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/engine"
)

// A program that runs code in a sandbox. It keeps glovebox-init beside itself, or says where it is.
func Example() {
	dir, err := os.MkdirTemp("", "glovebox-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	rung, err := process.New(process.Config{ScratchDir: dir, Init: initPath})
	if err != nil {
		log.Fatal(err)
	}
	e, err := engine.New(engine.Config{DataDir: dir, Drivers: []driver.Driver{rung}})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	owner := glovebox.Principal{Tenant: "local", Name: "me", Owner: true}
	result, err := e.Run(context.Background(), owner, glovebox.Request{Code: "print(6*7)", Trust: glovebox.TrustModel}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Status, string(result.Stdout))
}

// initPath is where the tests keep glovebox-init; left empty it is looked for beside the running program.
var initPath string

// TestExample runs the example and reads what it printed.
func TestExample(t *testing.T) {
	realEngine(t)
	var err error
	if initPath, err = buildInit(); err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = write
	Example()
	os.Stdout = stdout
	write.Close()
	if out, err := io.ReadAll(read); err != nil || string(out) != "exited 42\n\n" {
		t.Errorf("%q, %v", out, err)
	}
}
