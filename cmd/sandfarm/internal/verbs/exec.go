package verbs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

func (a *app) sandboxExec() *cobra.Command {
	var cwd, timeout, onOutputLimit, restart string
	var env []string
	var background, autoInstall, input, tty bool
	var dash int
	c := a.verb(&cobra.Command{
		Use: "exec ID COMMAND | exec ID -- ARG…", Short: "Run a shell command in a sandbox",
		Long: `Run a shell command in a sandbox. Output appears as it is written. The exit code is that of the command, and
124 after --timeout, as of timeout(1).

One argument is a line for the shell, with pipes and quotes. After -- each argument stays one word, whatever it contains.

With -i, -t or both the command runs as a process beside the jobs of the sandbox: it gets the input as it comes (-i), and
runs on a terminal (-t). -it is for people at a terminal, where ~. at the start of a line leaves the command. Otherwise it is a
job, in line behind others.

With --restart on-failure it is such a process too, which is started again when it fails; with --background it stays, and
"sandfarm attach" shows what it prints and "sandfarm kill" ends it. "sandfarm job events" shows what a job prints.`,
		Example: `  sandfarm exec sbx_… 'ls -la | sort -k5 -n'
  sandfarm exec sbx_… -- grep -r 'a b' .
  sandfarm exec -it sbx_… -- python
  tar c . | sandfarm exec -i sbx_… -- tar x
  sandfarm exec sbx_… --auto-install 'python report.py'
  sandfarm exec sbx_… --background 'python -m http.server'
  sandfarm exec sbx_… --background --restart on-failure -- python server.py`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(2, -1, "the sandbox's ID or the command"), func(ctx context.Context, c *client.Client, args []string) error {
		if input || tty {
			if background && restart == "" || autoInstall || onOutputLimit != "" {
				return usagef("--background, --auto-install and --on-output-limit are for jobs, so not with -i or -t")
			}
		}
		if input && tty && !background && !a.typed() { // its end would be a key that a program which sets up its terminal after that never gets
			return usagef("the input is not a terminal, as -it needs: leave out -t to pass the input on, or -i if the command needs none")
		}
		if input || tty || restart != "" {
			if autoInstall || onOutputLimit != "" {
				return usagef("--auto-install and --on-output-limit are for jobs, so not with --restart")
			}
			return a.execLive(ctx, c, args, dash, wire.ProcessRequest{Cwd: cwd, Stdin: input, Restart: restart}, execFlags{timeout, env, input, tty, background})
		}
		line, err := commandLine(args, dash)
		if err != nil {
			return err
		}
		request := wire.CommandRequest{Command: &line, Cwd: cwd, Background: background, AutoInstall: autoInstall, OnOutputLimit: optional(onOutputLimit)}
		var errs [2]error
		request.TimeoutSeconds, errs[0] = seconds("timeout", timeout)
		request.Env, errs[1] = pairs("--env", env, a.Getenv)
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		return a.exec(ctx, c, args[0], request)
	})
	check := c.Args
	c.Args = func(cmd *cobra.Command, args []string) error {
		if dash = cmd.ArgsLenAtDash(); dash == 0 && len(args) > 0 && !strings.HasPrefix(args[0], "sbx_") {
			return usage(cmd, fmt.Errorf("the sandbox's ID is missing before the command: sandfarm exec ID -- %s", quote(args)))
		}
		return check(cmd, args)
	}
	c.Flags().StringVarP(&cwd, "cwd", "w", "", "working directory, relative to the workspace")
	c.Flags().StringVar(&timeout, "timeout", "", "maximum run time, such as 90s or 10m (default: the farm's)")
	c.Flags().StringArrayVarP(&env, "env", "e", nil, "environment variable NAME=VALUE, or NAME with the value it has here (repeatable)")
	c.Flags().BoolVar(&autoInstall, "auto-install", false, "install packages that the Python programs it starts import and the sandbox lacks")
	outputLimitFlag(c, &onOutputLimit, "command")
	c.Flags().BoolVarP(&input, "interactive", "i", false, "pass the input on to the command as it comes")
	c.Flags().BoolVarP(&tty, "tty", "t", false, "run the command on a terminal")
	c.Flags().BoolVar(&background, "background", false, "leave it running and print the id of the job, or with --restart of the process")
	c.Flags().StringVar(&restart, "restart", "", "start it again when it ends with an exit code other than 0: on-failure, or never (default)")
	completeChoices(c, "restart", "never", "on-failure")
	return c
}

// execFlags are those flags of exec that a process needs in another form than a job.
type execFlags struct {
	timeout    string
	env        []string
	input, tty bool
	background bool
}

// execLive runs a command as a process.
func (a *app) execLive(ctx context.Context, c *client.Client, args []string, dash int, request wire.ProcessRequest, flags execFlags) error {
	line, err := commandLine(args, dash)
	if err != nil {
		return err
	}
	if request.Command = &line; dash == 1 {
		request.Command, request.Argv = nil, args[1:]
	}
	var errs [2]error
	request.TimeoutSeconds, errs[0] = seconds("timeout", flags.timeout)
	request.Env, errs[1] = pairs("--env", flags.env, a.Getenv)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if flags.tty {
		request.PTY = a.terminal()
		env := a.terminalEnv()
		if env == nil {
			env = map[string]string{}
		}
		maps.Copy(env, request.Env)
		request.Env = env
	}
	if flags.background {
		return a.startBehind(ctx, c, args[0], request)
	}
	return a.start(ctx, c, args[0], request, flags.input)
}

// startBehind starts a process, prints its id and leaves it.
func (a *app) startBehind(ctx context.Context, c *client.Client, sandbox string, request wire.ProcessRequest) error {
	p, err := c.StartProcess(ctx, sandbox, request)
	if err != nil {
		return err
	}
	if a.json {
		return a.print(p)
	}
	_, err = fmt.Fprintln(a.Out, p.ID)
	return err
}

// outputLimitFlag adds --on-output-limit; what is code or a command.
func outputLimitFlag(c *cobra.Command, value *string, what string) {
	c.Flags().StringVar(value, "on-output-limit", "", "when stdout or stderr exceeds limits.max_output_mb of the farm: continue (default) drops the middle of the output, stop ends the "+what)
	completeChoices(c, "on-output-limit", "continue", "stop")
}

// commandLine builds the line for the shell. dash is the number of arguments before --; negative if there is none.
func commandLine(args []string, dash int) (string, error) {
	switch {
	case dash == 1:
		return quote(args[1:]), nil
	case dash > 1:
		return "", usagef("give the command either before or after --")
	case len(args) > 2:
		return "", usagef("the command is more than one argument: quote it as one, or put -- before it")
	case strings.TrimSpace(args[1]) == "":
		return "", usagef("the command is empty")
	}
	return args[1], nil
}

// printAccepted prints a job without waiting for it.
func (a *app) printAccepted(job wire.Job, err error) error {
	if err != nil {
		return err
	}
	if a.json {
		return a.print(job)
	}
	_, err = fmt.Fprintln(a.Out, job.ID)
	return err
}

func (a *app) exec(ctx context.Context, c *client.Client, id string, request wire.CommandRequest) error {
	if request.Background {
		return a.printAccepted(c.Command(ctx, id, request))
	}
	follower := a.follower(c, false)
	job, err := follower.do(ctx, func(ctx context.Context) (wire.Job, error) { return c.Command(ctx, id, request) })
	if err != nil {
		return err
	}
	if r := job.Result; r != nil && r.Command != nil {
		a.printNotes(r.Command.Installed, r.Command.Notes)
		for _, one := range r.Command.Results {
			if one.Truncated.Stdout {
				err = errors.Join(err, follower.rest(ctx, r.Command.Artifacts, "stdout"))
			}
			if one.Truncated.Stderr {
				err = errors.Join(err, follower.rest(ctx, r.Command.Artifacts, "stderr"))
			}
		}
	}
	a.noteInput("sandfarm exec -i passes it on to the command")
	if a.json {
		err = errors.Join(err, a.print(job))
	}
	if err != nil {
		return err
	}
	return outcome(job)
}
