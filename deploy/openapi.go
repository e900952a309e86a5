//go:build ignore

// Command openapi prints the OpenAPI document of a farm with the default settings, for `make gen` and `make verify`. It
// is no part of command deploy, which imports no service.
package main

import (
	"fmt"
	"os"

	"github.com/sandfarm/sandfarm/api"
)

func main() {
	server, err := api.New(api.Config{}, api.Deps{})
	if err == nil {
		_, err = os.Stdout.Write(server.OpenAPI())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}
