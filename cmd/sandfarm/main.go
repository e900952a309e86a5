// Command sandfarm runs a Sandfarm, or a part of it, and speaks to one.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/bridge"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
)

// version is set at build time (-ldflags "-X main.version=…"); otherwise the module's own is shown.
var version string

func main() {
	// The first signal asks to stop; after it signals act as they always do, so a second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], verbs.Streams{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		IsTTY: term.IsTerminal(int(os.Stdin.Fd())), Getenv: os.Getenv,
	}))
}

// run runs the program and gives its exit code.
func run(ctx context.Context, args []string, streams verbs.Streams) int {
	root := newRoot(streams)
	root.SetArgs(args)
	return verbs.Exit(ctx, root.ExecuteContext(ctx), streams.Err)
}

func newRoot(streams verbs.Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "sandfarm",
		Short: "Run untrusted code in sandboxes",
		Long: `Sandfarm runs code that language models write in Docker sandboxes: a Jupyter kernel for each, shell commands,
files both ways, and a download link for every file that a run leaves behind.

A farm is started with "sandfarm up"; the other commands speak to it over its REST API.`,
		Version: versionText(),
	}
	connect := verbs.Add(root, streams)
	tools := bridge.Command(streams, connect, versionText())
	tools.GroupID = verbs.GroupRun
	root.AddCommand(tools)
	addServerVerbs(root, streams)
	return root
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
