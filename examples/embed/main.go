// Command embed runs code in a sandbox from a Go program.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/engine"
)

func main() {
	dir := os.Args[1] // the records are kept here
	// glovebox-init lies beside this program; Config.Init names another place.
	rung, err := process.New(process.Config{ScratchDir: dir})
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
