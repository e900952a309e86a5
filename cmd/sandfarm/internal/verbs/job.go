package verbs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

func (a *app) job() *cobra.Command {
	return asGroup(&cobra.Command{
		Use: "job", Aliases: []string{"jobs"},
		Short: "List, follow and cancel jobs",
		Long:  `All work of a farm is a job. It waits in a queue, runs, and keeps its result for a week.`,
		Example: `  sandfarm job ls --state running
  sandfarm job events job_…
  sandfarm job cancel job_…`,
	}, a.jobLs(), a.jobGet(), a.jobEvents(), a.jobWait(), a.jobCancel())
}

func (a *app) jobLs() *cobra.Command {
	var filter client.JobFilter
	var limit int
	var failed bool
	c := a.verb(&cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List jobs, newest first",
		Long: `List jobs, newest first. STATE says how the job ended, and OUTCOME whether what it ran was successful: ok, or the error or exit
code of what failed. TOOK counts from the time at which a worker started the job, also what its timeout does not: the start of its sandbox
or kernel, the end of code that was stopped, and the storing of files. WHAT is the file that ran, or the beginning of what did.
"sandfarm job get ID" shows more of it, and how long it ran.`,
		Example: `  sandfarm job ls
  sandfarm job ls --failed
  sandfarm job ls --sandbox sbx_… --state running`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		if failed {
			filter.Outcome = "failed"
		}
		if err := notNamed(ctx, c, filter.SandboxID); err != nil {
			return err
		}
		now := time.Now()
		head := []string{"ID", "KIND", "STATE", "OUTCOME", "SANDBOX", "CREATED", "TOOK", "WHAT"}
		return listed(a, c.Jobs(ctx, filter), limit, head, func(j wire.Job) []string {
			return []string{j.ID, j.Kind, j.State, outcomeText(j), j.SandboxID, since(j.CreatedAt, now), took(j, now), briefly(j)}
		})
	})
	c.Flags().StringVarP(&filter.SandboxID, "sandbox", "s", "", "only jobs of this sandbox")
	c.Flags().StringVar(&filter.State, "state", "", "only jobs in this state, such as running")
	c.Flags().StringVar(&filter.Kind, "kind", "", "only jobs of this kind, such as run or execute")
	c.Flags().StringVar(&filter.Outcome, "outcome", "", "only jobs with this outcome: ok or failed")
	c.Flags().BoolVar(&failed, "failed", false, "only jobs whose code, command or package failed, or that failed themselves")
	c.Flags().IntVar(&limit, "limit", 50, "at most this many; 0 for all")
	a.complete(c, "sandbox", a.sandboxIDs)
	return c
}

// outcomeText is the outcome of a job in a word or two; empty if it has none.
func outcomeText(j wire.Job) string {
	if j.Outcome == nil {
		return ""
	}
	r := j.Result
	if *j.Outcome == "ok" || j.State != "completed" || r == nil {
		return *j.Outcome
	}
	code := 0
	switch {
	case r.Execute != nil:
		if e := r.Execute.Error; e != nil && e.Name != "SystemExit" {
			return e.Name
		}
		code = r.Execute.ExitCode
	case r.Command != nil:
		for _, command := range r.Command.Results {
			code = cmp.Or(code, command.ExitCode)
		}
	}
	if code != 0 {
		return fmt.Sprintf("exit %d", code)
	}
	return *j.Outcome
}

// took is the time since a worker started a job, so far or in all.
func took(j wire.Job, now time.Time) string {
	if j.StartedAt == nil {
		return ""
	}
	end := now
	if j.FinishedAt != nil {
		end = *j.FinishedAt
	}
	return rounded(max(end.Sub(*j.StartedAt), 0))
}

func rounded(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// phase is a duration of wire.Timings; empty if the job has not had the phase.
func phase(ms float64) string {
	if ms <= 0 {
		return ""
	}
	return rounded(time.Duration(ms * float64(time.Millisecond)))
}

func (a *app) jobGet() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "get ID", Aliases: []string{"show"}, SuggestFor: []string{"job status"}, Short: "Show a job and its result",
		Long: `Show a job: what it was asked to do, how it ended, and its result. WAITED is the time in the queue, and TOOK that from then to the
end: beside the time in the sandbox the start of the sandbox or kernel, and the storing of files.`,
		Example:           "  sandfarm job get job_…",
		ValidArgsFunction: a.first(a.jobIDs),
	}, argCount(1, 1, "the job's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		job, err := c.Job(ctx, args[0])
		if err != nil {
			return err
		}
		return a.showJob(job)
	})
}

func (a *app) showJob(j wire.Job) error {
	if a.json {
		return a.print(j)
	}
	now := time.Now()
	rows := [][2]string{{"id", j.ID}, {"kind", j.Kind}, {"state", j.State}, {"outcome", whatCame(j)}, {"sandbox", j.SandboxID}}
	if j.Position > 0 {
		rows = append(rows, [2]string{"position", fmt.Sprint(j.Position)})
	}
	if j.EstimateSeconds != nil {
		rows = append(rows, [2]string{"starts in", fmt.Sprintf("about %g s", *j.EstimateSeconds)})
	}
	if j.Waiting != nil {
		rows = append(rows, [2]string{"waits for", asFlags(j.Waiting.Message)})
	}
	spent := took(j, now)
	if ran := phase(j.Timings.RunMS); ran != "" && spent != "" {
		spent += ", of that " + ran + " in the sandbox"
	}
	rows = append(rows, [2]string{"created", since(j.CreatedAt, now)}, [2]string{"waited", phase(j.Timings.QueueMS)}, [2]string{"took", spent})
	if j.Attempt > 1 {
		rows = append(rows, [2]string{"attempts", fmt.Sprintf("%d: it was requeued, or another worker took it over", j.Attempt)})
	}
	if j.Error != nil {
		text := asFlags(j.Error.Message)
		if j.State != "timed_out" && j.State != "canceled" { // whose code says less than their state
			text = j.Error.Code + ": " + text
		}
		rows = append(rows, [2]string{"error", text})
	}
	outputs := [][2]string{asked(j)}
	if r := j.Result; r != nil {
		switch {
		case r.Execute != nil:
			rows = append(rows, [2]string{"exit code", fmt.Sprint(r.Execute.ExitCode)}, [2]string{"artifacts", artifactNames(r.Execute.Artifacts)})
			outputs = append(outputs, [2]string{"stdout", r.Execute.Stdout}, [2]string{"stderr", r.Execute.Stderr})
			if e := r.Execute.Error; e != nil {
				outputs = append(outputs, [2]string{"exception", strings.Join(e.Traceback, "\n")})
			}
		case r.Command != nil:
			rows = append(rows, [2]string{"artifacts", artifactNames(r.Command.Artifacts)})
			for _, one := range r.Command.Results {
				outputs = append(outputs, [2]string{fmt.Sprintf("%s → %d", one.Command, one.ExitCode), one.Stdout + one.Stderr})
			}
		case r.Install != nil:
			for _, one := range r.Install.Packages {
				rows = append(rows, [2]string{"package", installedText(one)})
			}
			outputs = append(outputs, [2]string{"stdout", r.Install.Stdout}, [2]string{"stderr", r.Install.Stderr})
		}
	}
	err := facts(a.Out, rows)
	for _, output := range outputs {
		if output[1] != "" {
			fmt.Fprintf(a.Out, "\n--- %s\n%s\n", printable(output[0]), strings.TrimRight(printable(output[1]), "\n"))
		}
	}
	return err
}

// whatCame is the outcome of a job with the message of its exception; empty if it has none.
func whatCame(j wire.Job) string {
	text := outcomeText(j)
	if r := j.Result; r != nil && r.Execute != nil && r.Execute.Error != nil && text == r.Execute.Error.Name {
		message, _, _ := strings.Cut(r.Execute.Error.Value, "\n")
		text = strings.TrimSuffix(text+": "+message, ": ")
	}
	return text
}

// maxAskedLines is how many lines of its code a job is shown with.
const maxAskedLines = 10

// asked is a name for what a job was asked to run, and its first lines; empty if it runs nothing.
func asked(j wire.Job) [2]string {
	r := j.Request
	if r == nil {
		return [2]string{}
	}
	name, text := cmp.Or(r.Filename, "code"), r.Code
	if text == "" {
		name, text = "command", strings.Join(r.Commands, "\n")
	}
	if text == "" {
		name, text = "packages", strings.Join(r.Packages, "\n")
	}
	if lines := strings.Split(strings.TrimRight(text, "\n"), "\n"); len(lines) > maxAskedLines {
		name += fmt.Sprintf(" (the first %d lines; all: sandfarm job get %s --json)", maxAskedLines, j.ID)
		text = strings.Join(lines[:maxAskedLines], "\n")
	}
	return [2]string{name, text}
}

// maxBrief is how many characters a list shows of what a job was asked to do.
const maxBrief = 40

// briefly is what a job was asked to do, as a list shows it: a file, or the beginning of code or a command; empty if it runs nothing.
func briefly(j wire.Job) string {
	r := j.Request
	if r == nil {
		return ""
	}
	text := cmp.Or(r.Filename, strings.TrimSpace(r.Code), strings.Join(r.Commands, "; "), strings.Join(r.Packages, " "), r.Path)
	line, _, cut := strings.Cut(text, "\n")
	if brief := []rune(line); len(brief) > maxBrief {
		line, cut = string(brief[:maxBrief-1]), true
	}
	if cut {
		line += "…"
	}
	return line
}

func artifactNames(artifacts []wire.Artifact) string {
	names := make([]string, len(artifacts))
	for i, artifact := range artifacts {
		names[i] = fmt.Sprintf("%s (%s)", artifact.Path, size(artifact.Size))
	}
	return strings.Join(names, ", ")
}

func (a *app) jobEvents() *cobra.Command {
	var after string
	c := a.verb(&cobra.Command{
		Use: "events ID", Short: "Print the output of a job until it ends", SuggestFor: []string{"logs", "sandbox logs"},
		Long: `Print the output of a job from its start until it ends. This works for running and for finished jobs. With --json each
event is one line of JSON.`,
		Example: `  sandfarm job events job_…
  sandfarm job events job_… --json | jq -r 'select(.event == "stdout").data.text'`,
		ValidArgsFunction: a.first(a.jobIDs),
	}, argCount(1, 1, "the job's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		if a.json {
			return a.eventLines(ctx, c, args[0], after)
		}
		if err := a.follower(c, true).stream(ctx, args[0], after); err != nil {
			return err
		}
		job, err := c.Job(ctx, args[0])
		if err != nil {
			return err
		}
		text := job.State
		if came := whatCame(job); job.State == "completed" && came != "ok" && came != "" {
			text += ", outcome " + came
		}
		return a.say("sandfarm: %s", text)
	})
	c.Flags().StringVar(&after, "after", "", "start after the event with this id")
	return c
}

// eventLine is an event as one line of JSON.
type eventLine struct {
	ID    string          `json:"id"`
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data"`
}

func (a *app) eventLines(ctx context.Context, c *client.Client, id, after string) error {
	lines := a.encoder()
	lines.SetEscapeHTML(false)
	for event, err := range c.Events(ctx, id, after) {
		if err != nil {
			return goesOn(id, err)
		}
		if err := lines.Encode(eventLine{ID: event.ID, Event: event.Name, Data: event.Data}); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) jobWait() *cobra.Command {
	var timeout string
	c := a.verb(&cobra.Command{
		Use: "wait ID", Short: "Wait until a job has ended and show it",
		Long: `Wait until a job has ended and show it. The exit code is that of its code or command, and 1 if the farm failed.`,
		Example: `  sandfarm job wait job_…
  sandfarm job wait job_… --timeout 5m --json`,
		ValidArgsFunction: a.first(a.jobIDs),
	}, argCount(1, 1, "the job's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		limit, err := seconds("timeout", timeout)
		if err != nil {
			return err
		}
		waiting := ctx
		if limit != nil {
			var cancel context.CancelFunc
			waiting, cancel = context.WithTimeout(ctx, time.Duration(*limit)*time.Second)
			defer cancel()
		}
		job, err := a.wait(waiting, c, args[0])
		if ctx.Err() == nil && errors.Is(waiting.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("job %s has not ended after %s; it continues", args[0], timeout)
		}
		if err != nil {
			return err
		}
		if err := a.showJob(job); err != nil {
			return err
		}
		return outcome(job)
	})
	c.Flags().StringVar(&timeout, "timeout", "", "how long to wait, such as 90s or 10m (default: until the job ends)")
	return c
}

func (a *app) jobCancel() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "cancel ID…", Short: "Cancel jobs, queued or running", SuggestFor: []string{"stop", "job kill"}, Example: "  sandfarm job cancel job_…",
		ValidArgsFunction: a.every(a.openJobIDs),
	}, argCount(1, -1, "the job's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		var errs []error
		for _, id := range args {
			job, err := c.Cancel(ctx, id)
			if err == nil && a.json {
				err = a.print(job)
			}
			if err == nil {
				fmt.Fprintln(a.Err, canceled(job))
			}
			errs = append(errs, about("cancel "+id, err))
		}
		return errors.Join(errs...)
	})
}

// canceled says what became of a job that was to be canceled.
func canceled(j wire.Job) string {
	switch {
	case j.State == "canceled":
		return "canceled " + j.ID
	case j.Final():
		return fmt.Sprintf("nothing to cancel: %s has already ended (%s)", j.ID, j.State)
	}
	return "canceling " + j.ID
}
