// Package bridge serves a farm's MCP tools to one client over stdio, for programs that start their servers themselves. The
// tools are those of api/mcp, over a farm that is reached by its REST API, so the bridge can do nothing that the caller's
// key may not do. Of all interfaces only it reads and writes files of the caller's machine, below directories that the caller
// names. It has no state beyond a call.
package bridge

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Connect makes the client from flags and environment.
type Connect func() (*client.Client, error)

// Toolset is the name of the farm's own tools.
const Toolset = "sandfarm"

// Command is the verb mcp.
func Command(streams verbs.Streams, connect Connect, version string) *cobra.Command {
	var roots []string
	which := Toolset
	c := &cobra.Command{
		Use:   "mcp",
		Short: "Serve the farm's tools to an MCP client over stdio",
		Long: `Serve the farm's tools over stdio, for MCP clients that start their servers as programs, such as Claude Desktop. Clients that
speak HTTP can use the farm's address /mcp directly.

Getting started:
  1. Start a farm (sandfarm up), or set SANDFARM_URL and SANDFARM_API_KEY to reach one elsewhere.
  2. Run "sandfarm mcp config --client NAME" and paste its output into the client's configuration.
  3. Ask the model to run some code. The client starts this command by itself.

Tools: ` + toolNames() + `.
Prompts: analyse_file, plot_data, run_script.

Files: upload_file_to_sandbox and download_file can use files of this machine below the directories of --root (default: the current
directory, unless that is / or contains your home). A model chooses the names, so nothing outside is read or written, hidden files are
left alone, no existing file is overwritten, and no file is created under a name that other programs load, such as Makefile.

Toolsets: --toolset serves the tools of an older system instead, with the names and answers that its clients know.

Stdout carries only the protocol, messages go to stderr. The command ends when stdin ends.`,
		Example: `  sandfarm mcp config --client claude-desktop
  sandfarm mcp --toolset notebook
  sandfarm mcp --root ~/project --root ~/data
  SANDFARM_URL=https://farm.example.com SANDFARM_API_KEY=… sandfarm mcp`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &verbs.UsageError{Err: fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath()), Command: cmd.CommandPath()}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := known(which); err != nil {
				return &verbs.UsageError{Err: err, Command: cmd.CommandPath()}
			}
			farm, err := connect()
			if err != nil {
				return err
			}
			files, err := OpenRoots(roots, streams.Getenv("HOME"), streams.Getenv("PATH"))
			if err != nil {
				return err
			}
			defer func() { _ = files.Close() }()
			return Serve(cmd.Context(), streams, farm, files, which, version)
		},
	}
	c.Flags().StringArrayVar(&roots, "root", nil, "directory of this machine whose files the tools may use (repeatable; default: the current one)")
	c.Flags().StringVar(&which, "toolset", which, "which tools: "+strings.Join(toolsets(), ", "))
	_ = c.MarkFlagDirname("root")
	_ = c.RegisterFlagCompletionFunc("toolset", cobra.FixedCompletions(toolsets(), cobra.ShellCompDirectiveNoFileComp))
	c.AddCommand(configCommand(streams, connect))
	return c
}

// toolNames lists the farm's own tools for the help, in lines of a terminal.
func toolNames() string {
	lines := []string{""}
	for i, name := range mcp.ToolNames() {
		word := name
		if i > 0 {
			word = ", " + name
		}
		if last := len(lines) - 1; len(lines[last])+len(word) > 120 {
			lines[last] += ","
			lines = append(lines, name)
		} else {
			lines[last] += word
		}
	}
	return strings.Join(lines, "\n")
}

// toolsets lists the names of all toolsets: the farm's own and those of older systems.
func toolsets() []string {
	names := []string{Toolset}
	for _, set := range compat.Toolsets() {
		names = append(names, set.Name)
	}
	return names
}

func known(toolset string) error {
	if slices.Contains(toolsets(), toolset) {
		return nil
	}
	return fmt.Errorf("there is no toolset %q; there is: %s", toolset, strings.Join(toolsets(), ", "))
}

// askTimeout bounds the first question to the farm, so that a client does not wait for one that is away.
const askTimeout = 5 * time.Second

// Serve serves a toolset to one client until the client closes the streams or ctx ends. A process can do this once. A farm that refuses the key is an
// error at once; one that does not answer may come back.
func Serve(ctx context.Context, streams verbs.Streams, c *client.Client, files *Roots, name, version string) error {
	asking, done := context.WithTimeout(ctx, askTimeout)
	_, err := c.Limits(asking)
	done()
	if client.CodeOf(err) == string(farm.CodeUnauthorized) {
		return fmt.Errorf("ask the farm: %w", err)
	}
	log := slog.New(slog.NewTextHandler(streams.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	server, err := newServer(NewFarm(c), files, name, version, log)
	if err != nil {
		return fmt.Errorf("make the tools: %w", err)
	}
	fmt.Fprintf(streams.Err, "sandfarm: serving the tools of the farm at %s; %s\n", c.URL(), files.about())
	stdio := newLinger(ctx, streams.In, streams.Out)
	if err := server.ServeStdio(ctx, stdio, stdio); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve tools: %w", err)
	}
	return nil // clients end their servers with a signal
}

// stdioServer serves tools over a pair of streams.
type stdioServer interface {
	ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error
}

func newServer(remote compat.Farm, files *Roots, name, version string, log *slog.Logger) (stdioServer, error) {
	for _, set := range compat.Toolsets() {
		if set.Name == name {
			env := compat.Env{Farm: func(context.Context) compat.Farm { return remote }, Local: files, Logger: log}
			return set.Serve(env, version, mcp.HTTP{})
		}
	}
	return mcp.New(mcp.Options{
		Farm:    func(context.Context) mcp.Farm { return remote },
		Version: version,
		Logger:  log,
		Local:   files,
	})
}
