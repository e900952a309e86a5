package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// linuxOnly names the verbs of package farmd, which only Linux has, with their short help. parent is the command that a
// verb is below; empty for the root.
var linuxOnly = []struct{ parent, name, short string }{
	{"", "up", "Run a whole farm in one process"},
	{"", "down", "Remove the sandboxes and volumes of a stopped farm from the engine"},
	{"", "api", "Run the API alone"},
	{"", "worker", "Run a worker alone, for a Docker engine or a cluster"},
	{"", "scheduler", "Run the scheduler alone"},
	{"", "doctor", "Check everything that a farm needs, and say what to do about each problem"},
	{"", "config", "Show and check settings"},
	{"", "health", "Report by the exit code whether a service on this host works"},
	{"", "caretaker", "Wait to be stopped, then remove the sandboxes if no worker runs any more"},
	{"", "engine-proxy", "Run a proxy before the Docker socket that lets workers do only what a farm does"},
	{"", "import-config", "Turn the config.toml of mcp-sandbox or python-mcp-sandbox into settings of a farm"},
	{"", "install-agent", "Copy the agent into a directory: the first step of a sandbox in a cluster"},
	{"image", "build", "Build a sandbox image in the local Docker engine (python by default)"},
}

// addLinuxOnlyVerbs adds a stub for each verb that needs Linux. It accepts any flags and arguments and fails with what
// to do instead.
func addLinuxOnlyVerbs(root *cobra.Command) {
	root.AddGroup(&cobra.Group{ID: "server", Title: "Run a farm (on Linux):"})
	for _, verb := range linuxOnly {
		c := &cobra.Command{
			Use: verb.name, Short: verb.short, Long: verb.short + ". Needs Linux.",
			Args:               cobra.ArbitraryArgs,
			FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
			ValidArgsFunction:  cobra.NoFileCompletions,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return fmt.Errorf("`%s` needs Linux, and this is %s. Start the farm on a Linux machine or in a Linux VM, then reach it from here with --url or SANDFARM_URL (docs/install.md)",
					cmd.CommandPath(), runtime.GOOS)
			},
		}
		parent := root
		if verb.parent == "" {
			c.GroupID = "server"
		} else if found, _, err := root.Find([]string{verb.parent}); err == nil {
			parent = found
		}
		parent.AddCommand(c)
	}
}
