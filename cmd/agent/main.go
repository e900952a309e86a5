// Command agent runs inside every sandbox: init is PID 1, dial connects its own stdin and stdout to it, files serves files to it as the
// sandbox's user.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/sandfarm/sandfarm/internal/agent"
)

// version is set by the build.
var version = "dev"

var errUsage = errors.New("usage: agent init|dial|files|version")

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in *os.File, out *os.File) error {
	if len(args) == 0 {
		return errUsage
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	switch args[0] {
	case "init":
		o := initOptions{}
		flags.StringVar(&o.workspace, "workspace", "", "workspace directory")
		flags.StringVar(&o.run, "run", "", "the agent's own directory")
		flags.StringVar(&o.home, "home", "", "home directory of user code")
		flags.StringVar(&o.tmp, "tmp", "", "temporary directory of user code")
		flags.StringVar(&o.socket, "socket", agent.SocketPath, "socket to listen on")
		flags.IntVar(&o.uid, "dial-uid", agent.DialUID, "user id that may connect, besides root")
		flags.BoolVar(&o.egress, "egress", false, "forward connections of installers to the worker's package indexes")
		flags.BoolVar(&o.proxy, "proxy", false, "forward connections to the worker as a proxy, too")
		flags.StringVar(&o.authority, "authority", "", "certificate that programs trust, beside the image's (X.509, DER, in base64)")
		flags.DurationVar(&o.endsIn, "ends-in", 0, "time until the sandbox's deadline; the agent ends the sandbox a few seconds after it")
		if err := flags.Parse(args[1:]); err != nil {
			return fmt.Errorf("parse flags: %w", err)
		}
		return runInit(ctx, o)
	case "dial":
		socket := flags.String("socket", agent.SocketPath, "socket to dial")
		if err := flags.Parse(args[1:]); err != nil {
			return fmt.Errorf("parse flags: %w", err)
		}
		return dial(ctx, *socket, in, out)
	case "files":
		return runFiles()
	case "version":
		_, err := fmt.Fprintln(out, version)
		return err
	}
	return errUsage
}
