package verbs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
)

// Streams are the input, the outputs and the environment of the commands. Every field but IsTTY, Local and After must be set.
type Streams struct {
	In     io.Reader
	Out    io.Writer // results only, so that it can be piped on
	Err    io.Writer // everything else
	IsTTY  bool      // In is a terminal
	Getenv func(string) string
	Local  OpenLocal // nil where no farm can run
	// After is time.After, which tests replace; nil: time.After.
	After func(time.Duration) <-chan time.Time
}

// app holds what the verbs share: streams and global flags.
type app struct {
	Streams
	url, key, keyFile string
	json              bool

	local  bool // --local was given
	config string

	unanswered sync.Map // reasons of pauses while the farm does not answer, that were said
}

// GroupClients is the group of the verbs that connect editors and models, in the help.
const GroupClients = "clients"

// Connect makes the client of the farm that flags and environment name, once the flags are parsed. If they name none, it is the one at the given
// address; "" for client.DefaultURL.
type Connect func(unnamed string) (*client.Client, error)

// Add adds the verbs and their global flags to the root command. Other commands find the same farm by what it returns.
func Add(root *cobra.Command, streams Streams) Connect {
	a := &app{Streams: streams}
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return cmp.Or(unknownCommand(cmd, cmd.Flags().Args()), usage(cmd, flagError(cmd, err)))
	})
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if unknownCommand(cmd, cmd.Flags().Args()) == nil { // Execute reports it
			help(cmd, args)
		}
	})
	root.SetHelpCommand(helpCommand(root))
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "url", "", "address of the farm ($SANDFARM_URL; default "+client.DefaultURL+")")
	flags.StringVar(&a.key, "key", "", "API key (better in $SANDFARM_API_KEY: other users of this machine can see arguments)")
	flags.StringVar(&a.keyFile, "key-file", "", "`FILE` with the API key, which nobody else may be able to read ($SANDFARM_API_KEY_FILE)")
	flags.BoolVar(&a.json, "json", false, "print JSON instead of text, errors on stderr too")
	asGroup(root)
	for _, g := range []struct {
		id, title string
		verbs     []*cobra.Command
	}{
		{"run", "Run code:", []*cobra.Command{a.run(), a.sandboxExec(), a.job()}},
		{"sandbox", "Work in sandboxes:", []*cobra.Command{a.sandbox(), a.ssh(), a.ps(), a.attach(), a.kill(), a.portForward()}},
		{"files", "Files and packages:", []*cobra.Command{a.files(), a.cp(), a.sync(), a.artifact(), a.packages()}},
		{GroupClients, "Connect editors and models:", []*cobra.Command{a.jupyter(), a.kernel(), a.sshConfig(), a.sshProxy()}},
		{"look", "Look at a farm:", []*cobra.Command{a.image(), a.images(), a.workers(), a.queues(), a.events(), a.usage(), a.top()}},
		{"operate", "Operate a farm:", []*cobra.Command{a.keys(), a.tenant(), a.audit(), a.scale(), a.worker()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.verbs {
			c.GroupID = g.id
			root.AddCommand(c)
		}
	}
	return a.client
}

// client is the app's Connect.
func (a *app) client(unnamed string) (*client.Client, error) {
	at := cmp.Or(a.url, a.Getenv("SANDFARM_URL"), unnamed, client.DefaultURL)
	key, err := a.apiKey()
	if err != nil {
		return nil, err
	}
	c, err := client.New(at, client.WithKey(key), client.WithUserAgent("sandfarm-cli"), client.WithRetryNotice(a.sayRetry))
	if err != nil {
		return nil, &hint{err: err, text: err.Error() + ". Set --url or SANDFARM_URL."}
	}
	return c, nil
}

// action is the work of a verb, with the client of its farm.
type action func(ctx context.Context, c *client.Client, args []string) error

// verb makes a command of an action.
func (a *app) verb(c *cobra.Command, args cobra.PositionalArgs, do action) *cobra.Command {
	c.Args = func(cmd *cobra.Command, got []string) error {
		if err := args(cmd, got); err != nil {
			return mistaken(cmd, got, usage(cmd, err))
		}
		return nil
	}
	c.RunE = func(cmd *cobra.Command, got []string) error {
		farm, done, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer func() { _ = done() }()
		err = named(cmd, farm, got, mistaken(cmd, got, a.refused(cmd, do(cmd.Context(), farm, got))))
		if e, ok := errors.AsType[*UsageError](err); ok && e.Command == "" {
			e.Command = cmd.CommandPath()
		}
		return unreachable(err, farm.URL())
	}
	return c
}

// asGroup makes a command that only contains others. Alone it prints its help; an unknown name is a usage error.
func asGroup(c *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownCommand(cmd, args)
	}
	c.AddCommand(subs...)
	return c
}

// unknownCommand is the usage error of arguments of a command that contains others, which names none of them; nil if there are no arguments, or
// the command contains none.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if !cmd.HasSubCommands() || len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	if meant := suggestions(cmd, args); len(meant) > 0 {
		err = fmt.Errorf("%w; did you mean \"%s\"?", err, strings.Join(meant, `" or "`))
	}
	return usage(cmd, err)
}

// helpCommand prints the help of the command that its arguments name.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Help about any command", Example: "  sandfarm help sandbox create",
		ValidArgsFunction: func(_ *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var found []cobra.Completion
			if at, rest, err := root.Find(args); err == nil && len(rest) == 0 {
				for _, sub := range at.Commands() {
					if sub.IsAvailableCommand() && strings.HasPrefix(sub.Name(), text) {
						found = append(found, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return found, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			at, rest, err := root.Find(args)
			if err != nil {
				return usage(root, err)
			}
			if err := unknownCommand(at, rest); err != nil {
				return err
			}
			at.InitDefaultHelpFlag() // as cobra's own help command does, so that it is listed
			return at.Help()
		},
	}
}

func usage(cmd *cobra.Command, err error) error {
	return &UsageError{Err: err, Command: cmd.CommandPath()}
}

// StrictArgs turns a wrong number of arguments, to a command and those below it, into a usage error as the verbs give it.
func StrictArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			switch {
			case err == nil:
				return nil
			case !cmd.HasSubCommands() && strings.HasPrefix(err.Error(), "unknown command "): // cobra.NoArgs takes each argument for one
				err = fmt.Errorf("too many arguments: %q", args[0])
			}
			return usage(cmd, err)
		}
	}
	for _, sub := range c.Commands() {
		StrictArgs(sub)
	}
}

// usagef makes a usage error inside an action; verb adds the name of the command.
func usagef(format string, args ...any) error { return &UsageError{Err: fmt.Errorf(format, args...)} }

// argCount bounds the number of arguments; what names the required ones in the error. most < 0 means any number.
func argCount(least, limit int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s is missing", what)
		case limit >= 0 && len(args) > limit:
			return fmt.Errorf("too many arguments: %q", args[limit])
		}
		return nil
	}
}

// encoder writes JSON, each value with what a terminal obeys or hides as \uXXXX: code in a sandbox chooses the names of files.
func (a *app) encoder() *json.Encoder { return json.NewEncoder(escaping{a.Out}) }

// print writes v as indented JSON.
func (a *app) print(v any) error {
	e := a.encoder()
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
