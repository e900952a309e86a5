package verbs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
)

// Streams is what the commands read and write. Every field but IsTTY must be set.
type Streams struct {
	In     io.Reader
	Out    io.Writer // results only, so that it can be piped on
	Err    io.Writer // everything else
	IsTTY  bool      // a person types at In
	Getenv func(string) string
}

// app is what every verb shares.
type app struct {
	Streams
	url, key string
	json     bool
}

// Names of the command groups in the help.
const (
	GroupRun  = "run"
	groupLook = "look"
)

// Add puts the verbs and the flags that they share on the root command. It gives what makes the client that flags and
// environment ask for, once the flags are read: for commands of others.
func Add(root *cobra.Command, streams Streams) func() (*client.Client, error) {
	a := &app{Streams: streams}
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, err) })
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "url", "", "address of the farm ($SANDFARM_URL; default "+client.DefaultURL+")")
	flags.StringVar(&a.key, "key", "", "API key ($SANDFARM_API_KEY, which other users of this machine cannot see)")
	flags.BoolVar(&a.json, "json", false, "print the farm's own JSON instead of text")
	root.AddGroup(&cobra.Group{ID: GroupRun, Title: "Run code:"}, &cobra.Group{ID: groupLook, Title: "Look at a farm:"})
	asGroup(root)
	for _, c := range []*cobra.Command{a.run(), a.sandbox(), a.files(), a.packages()} {
		c.GroupID = GroupRun
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{a.job(), a.artifact(), a.image(), a.images(), a.workers(), a.queues(), a.top()} {
		c.GroupID = groupLook
		root.AddCommand(c)
	}
	return a.client
}

// client makes the client that the flags and the environment ask for.
func (a *app) client() (*client.Client, error) {
	at := cmp.Or(a.url, a.Getenv("SANDFARM_URL"), client.DefaultURL)
	key := cmp.Or(a.key, a.Getenv("SANDFARM_API_KEY"))
	c, err := client.New(at, client.WithKey(key), client.WithUserAgent("sandfarm-cli"))
	if err != nil {
		return nil, &hint{err: err, text: err.Error() + ". Set --url or SANDFARM_URL."}
	}
	return c, nil
}

// action is what a verb does once its farm is known.
type action func(ctx context.Context, c *client.Client, args []string) error

// verb makes a command from an action.
func (a *app) verb(c *cobra.Command, args cobra.PositionalArgs, do action) *cobra.Command {
	c.Args = func(cmd *cobra.Command, got []string) error {
		if err := args(cmd, got); err != nil {
			return usage(cmd, err)
		}
		return nil
	}
	c.RunE = func(cmd *cobra.Command, got []string) error {
		farm, err := a.client()
		if err != nil {
			return err
		}
		err = do(cmd.Context(), farm, got)
		if e, ok := errors.AsType[*UsageError](err); ok && e.Command == "" {
			e.Command = cmd.CommandPath()
		}
		return unreachable(err, farm.URL())
	}
	return c
}

// asGroup makes a command that only holds others: alone it prints its help, and an unknown name is a usage error.
func asGroup(c *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
		cmd.SuggestionsMinimumDistance = 2
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			err = fmt.Errorf("%w; there is %q", err, near[0])
		}
		return usage(cmd, err)
	}
	c.AddCommand(subs...)
	return c
}

func usage(cmd *cobra.Command, err error) error {
	return &UsageError{Err: err, Command: cmd.CommandPath()}
}

// StrictArgs makes a wrong number of arguments of a command and those below it a usage error, as it is for the verbs.
func StrictArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usage(cmd, err)
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		StrictArgs(sub)
	}
}

// usagef is a usage error inside an action; verb adds the command's name.
func usagef(format string, args ...any) error { return &UsageError{Err: fmt.Errorf(format, args...)} }

// argCount is how many arguments a verb takes, in words of its own.
func argCount(least, most int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s is missing", what)
		case most >= 0 && len(args) > most:
			return fmt.Errorf("too many arguments: %q", args[most])
		}
		return nil
	}
}

// print writes v as indented JSON.
func (a *app) print(v any) error {
	e := json.NewEncoder(a.Out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
