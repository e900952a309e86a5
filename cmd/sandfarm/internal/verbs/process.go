package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/sshproxy"
)

// endTimeout bounds the end of a process after Ctrl-C: it has five seconds for SIGTERM.
const endTimeout = 20 * time.Second

// defaultSize is the size of a terminal whose caller has none.
var defaultSize = wire.TerminalSize{Cols: 80, Rows: 24}

func (a *app) ssh() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "ssh ID", Short: "Open a shell in a sandbox", SuggestFor: []string{"shell", "sandbox ssh"},
		Long: `Open a login shell in a sandbox, on a terminal of its own unless the input is a file or a pipe. The exit code is that of
the shell.

The shell keeps running when the connection breaks, and the command reconnects. Type ~. at the start of a line to leave; "sandfarm
attach" comes back. ~? lists what can be typed. The shell ends when you exit from it and when the sandbox is closed.`,
		Example: `  sandfarm ssh sbx_…
  echo 'ls -la' | sandfarm ssh sbx_…`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, sshArgs, func(ctx context.Context, c *client.Client, args []string) error {
		request := wire.ProcessRequest{Command: optional(sshproxy.LoginShell), Name: "ssh", Stdin: !a.typed()}
		if !request.Stdin {
			request.PTY, request.Env = a.terminal(), a.terminalEnv()
		}
		return a.start(ctx, c, args[0], request, true)
	})
}

// sshArgs are the arguments of ssh, which takes no command.
func sshArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("ssh opens a shell and takes no command: sandfarm exec %s %s runs one", args[0], quoteOne(strings.Join(args[1:], " ")))
	}
	return argCount(1, 1, "the sandbox's ID")(cmd, args)
}

// processArgs are the id of a sandbox and those of its processes, with the limit of argCount.
func processArgs(limit int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 1 && strings.HasPrefix(args[0], "prc_"):
			return fmt.Errorf("the sandbox's ID is missing: sandfarm %s ID %s", cmd.Name(), args[0])
		case len(args) == 1 && strings.HasPrefix(args[0], "sbx_"):
			return fmt.Errorf("the process's ID is missing: %q lists those of the sandbox", "sandfarm ps "+args[0])
		}
		return argCount(2, limit, "the sandbox's ID or the process's ID")(cmd, args)
	}
}

func (a *app) attach() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "attach ID PROCESS", Short: "Attach to a process of a sandbox", SuggestFor: []string{"logs", "sandbox logs"},
		Long: `Show the output of a process, from the first byte that is kept, and pass the input on to it. The exit code is that of
the process. Ctrl-C leaves it and lets it run on; on a terminal Ctrl-C is typed to the process, and ~. at the start of a line
leaves.`,
		Example: `  sandfarm ps sbx_…
  sandfarm attach sbx_… prc_…`,
		ValidArgsFunction: a.second(a.sandboxIDs, a.processIDs),
	}, processArgs(2), func(ctx context.Context, c *client.Client, args []string) error {
		p, err := c.Process(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		s := &session{app: a, c: c, sandbox: args[0], process: p, input: p.Stdin}
		return a.left(s, s.run(ctx))
	})
}

func (a *app) kill() *cobra.Command {
	var signal string
	c := a.verb(&cobra.Command{
		Use: "kill ID PROCESS…", Short: "End processes of a sandbox, or send them a signal", SuggestFor: []string{"stop", "signal"},
		Long: `End processes of a sandbox and all that they started: by SIGTERM, and after five seconds by SIGKILL. A process with --restart is not
started again. PROCESS is an id, or a pid as "ps --all" lists it: of what a job or a kernel started, that process alone ends.

With --signal only send this signal. "sandfarm job cancel" ends a job, "sandfarm sandbox close" a sandbox.`,
		Example: `  sandfarm kill sbx_… prc_…
  sandfarm kill sbx_… prc_… --signal SIGHUP
  sandfarm kill sbx_… 42`,
		ValidArgsFunction: a.second(a.sandboxIDs, a.processIDs),
	}, processArgs(-1), func(ctx context.Context, c *client.Client, args []string) error {
		var errs []error
		for _, id := range args[1:] {
			var p wire.Process
			var err error
			done := "ended "
			if signal == "" {
				p, err = c.EndProcess(ctx, args[0], id)
			} else {
				done = "sent " + signal + " to "
				p, err = c.SignalProcess(ctx, args[0], id, signal)
			}
			if err == nil && a.json {
				err = a.print(p)
			}
			if err == nil {
				fmt.Fprintln(a.Err, printable(done+id))
			}
			errs = append(errs, about("process "+id, err))
		}
		return errors.Join(errs...)
	})
	c.Flags().StringVarP(&signal, "signal", "s", "", "signal to send, such as SIGINT (default: end the process)")
	completeChoices(c, "signal", "SIGINT", "SIGTERM", "SIGKILL", "SIGHUP", "SIGUSR1", "SIGSTOP", "SIGCONT")
	return c
}

func (a *app) ps() *cobra.Command {
	var all bool
	c := a.verb(&cobra.Command{
		Use: "ps ID", Short: "List the processes of a sandbox and its jobs that have not ended",
		Long: `List the processes that were started beside the jobs of a sandbox, the oldest first; of those that have ended, the newest 64.
Below them are the jobs that have not ended, also those of "exec --background": "sandfarm job events" follows one. --json
leaves the jobs out: "sandfarm job ls --json" has them.

With --all list what runs in the sandbox, whoever started it: OWNER is a process, a job or the kernel.`,
		Example: `  sandfarm ps sbx_…
  sandfarm ps sbx_… --all
  sandfarm ps sbx_… --json | jq -r '.items[].id'`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(1, 1, "the sandbox's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		if all {
			return a.psAll(ctx, c, args[0])
		}
		found, err := c.Processes(ctx, args[0])
		if err != nil || a.json {
			return a.list(found, err)
		}
		jobs, err := collect(c.Jobs(ctx, client.JobFilter{SandboxID: args[0], State: "queued,running"}))
		if err != nil {
			return err
		}
		now := time.Now()
		rows := make([][]string, 0, len(found)+len(jobs))
		for _, p := range found {
			rows = append(rows, []string{p.ID, fmt.Sprint(p.PID), p.Name, processState(p), since(p.StartedAt, now), processLine(p)})
		}
		for _, j := range slices.Backward(jobs) {
			var started time.Time // zero: it waits
			if j.StartedAt != nil {
				started = *j.StartedAt
			}
			rows = append(rows, []string{j.ID, "", j.Kind, j.State, since(started, now), jobLine(j)})
		}
		if err := table(a.Out, []string{"ID", "PID", "NAME", "STATE", "STARTED", "COMMAND"}, rows); err != nil || len(rows) > 0 {
			return err
		}
		fmt.Fprintln(a.Err, "sandfarm: no process was started beside its jobs, and no job is open; --all shows what they left running")
		return nil
	})
	c.Flags().BoolVarP(&all, "all", "a", false, "list what runs in the sandbox, also for jobs and kernels")
	return c
}

// psAll lists everything that runs in a sandbox.
func (a *app) psAll(ctx context.Context, c *client.Client, sandbox string) error {
	found, err := c.Running(ctx, sandbox)
	if err != nil || a.json {
		return a.list(found, err)
	}
	now := time.Now()
	rows := make([][]string, len(found))
	for i, p := range found {
		rows[i] = []string{p.Owner, fmt.Sprint(p.PID), fmt.Sprint(p.Parent), fmt.Sprintf("%.2fs", p.CPUSeconds), size(p.MemoryBytes), since(p.StartedAt, now), shortLine(p.Command)}
	}
	return table(a.Out, []string{"OWNER", "PID", "PARENT", "CPU", "MEMORY", "STARTED", "COMMAND"}, rows)
}

// processState is running, or how a process ended.
func processState(p wire.Process) string {
	switch {
	case p.ExitCode == nil && p.Restarts > 0:
		return fmt.Sprintf("%s (restart %d)", p.State, p.Restarts)
	case p.ExitCode == nil:
		return p.State
	case p.OutOfMemory:
		return fmt.Sprintf("exit %d (memory)", *p.ExitCode)
	case p.TimedOut:
		return fmt.Sprintf("exit %d (timeout)", *p.ExitCode)
	}
	return fmt.Sprintf("exit %d", *p.ExitCode)
}

// processLine is what a process runs, shortened.
func processLine(p wire.Process) string { return shortLine(cmp.Or(p.Command, quote(p.Argv))) }

// jobLine is what a job runs, shortened; empty for work that has no code, such as a restart.
func jobLine(j wire.Job) string {
	if j.Request == nil {
		return ""
	}
	return shortLine(cmp.Or(strings.Join(j.Request.Commands, "; "), strings.Join(j.Request.Packages, " "), j.Request.Code))
}

func shortLine(text string) string {
	const limit = 80
	line := []rune(text)
	if len(line) > limit {
		return string(line[:limit-1]) + "…"
	}
	return string(line)
}

// start starts a process and stays with it until it ends. Interrupted, it ends the process too.
func (a *app) start(ctx context.Context, c *client.Client, sandbox string, request wire.ProcessRequest, input bool) error {
	p, err := c.StartProcess(ctx, sandbox, request)
	if err != nil {
		return err
	}
	s := &session{app: a, c: c, sandbox: sandbox, process: p, input: input}
	err = s.run(ctx)
	_, exited := errors.AsType[*CodeError](err)
	if err == nil || exited || ctx.Err() != nil { // what has ended need not be listed; what was interrupted ends
		ending, done := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer done()
		if _, failed := c.EndProcess(ending, sandbox, p.ID); failed != nil && client.CodeOf(failed) != "not_found" && ctx.Err() != nil {
			return errors.Join(err, about("end process "+p.ID, failed))
		}
		return err
	}
	return a.left(s, err)
}

// left says how to come back to a process that runs on.
func (a *app) left(s *session, err error) error {
	_, exited := errors.AsType[*CodeError](err)
	if err == nil || exited {
		return err
	}
	fmt.Fprintf(a.Err, "sandfarm: %s runs on: sandfarm attach %s %s\n", s.process.ID, s.sandbox, s.process.ID)
	if errors.Is(err, errLeft) {
		return nil
	}
	return err
}

// terminal is the size of a new terminal: that of this one.
func (a *app) terminal() *wire.TerminalSize {
	if out, ok := a.Out.(*os.File); ok {
		if size, ok := sizeOf(out); ok {
			return &size
		}
	}
	return new(defaultSize)
}

// typed reports whether the input comes from a terminal.
func (a *app) typed() bool {
	in, ok := a.In.(*os.File)
	return ok && term.IsTerminal(int(in.Fd()))
}

// terminalEnv tells programs the kind of this terminal.
func (a *app) terminalEnv() map[string]string {
	if kind := a.Getenv("TERM"); kind != "" && kind != "dumb" && !strings.ContainsRune(kind, 0) {
		return map[string]string{"TERM": kind}
	}
	return nil
}
