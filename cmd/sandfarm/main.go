// Command sandfarm is the client of a Sandfarm, and on Linux runs one, whole or in parts.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/bridge"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
)

// version is set at build time (-ldflags "-X main.version=…"). If it is empty, the version of the module is used.
var version string

func main() {
	// The first signal asks the program to stop; a second one ends it at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], verbs.Streams{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		IsTTY: term.IsTerminal(int(os.Stdin.Fd())), Getenv: os.Getenv,
	}))
}

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, streams verbs.Streams) int {
	root := newRoot(streams)
	root.SetArgs(args)
	return verbs.Execute(ctx, root, streams.Err)
}

func newRoot(streams verbs.Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "sandfarm",
		Short: "Run untrusted code in sandboxes",
		Long: `Sandfarm runs code written by language models in Docker sandboxes: each has a Python kernel, shell commands and files,
and every file that a run creates gets a download link.

"sandfarm up" starts a farm. Most other commands are clients of its REST API.`,
		Version: versionText(),
	}
	streams.Local = localFarm()
	connect := verbs.Add(root, streams)
	tools := bridge.Command(streams, func() (*client.Client, error) { return connect("") }, versionText())
	tools.GroupID = verbs.GroupClients
	root.AddCommand(tools)
	addServerVerbs(root, streams, connect)
	joinWorkers(root)
	return root
}

// joinWorkers puts the verbs of clients about workers below the verb that runs one: both are named worker.
func joinWorkers(root *cobra.Command) {
	var first *cobra.Command
	for _, c := range root.Commands() {
		switch {
		case c.Name() != "worker":
		case first == nil:
			first = c
		default:
			group, runs := first, c
			if group.GroupID == "server" {
				group, runs = c, first
			}
			root.RemoveCommand(group)
			runs.AddCommand(group.Commands()...)
		}
	}
}

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
