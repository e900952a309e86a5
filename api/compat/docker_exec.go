package compat

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// commandSeconds is the timeout of commands, if the farm allows that much.
	commandSeconds = 3600
	// maxTogether is how many commands one job has.
	maxTogether = 64
	// maxExecBytes is how long the results of an answer may be, in JSON, for another job to start: those of that one come on top. Each result, note and
	// package counts outcomeBytes beside its texts.
	maxExecBytes = 8 << 20
	outcomeBytes = 256
)

// dockerExecuted is the answer of sandbox_exec.
type dockerExecuted struct {
	Success   bool            `json:"success"`
	Results   []dockerOutcome `json:"results"`
	Installed []dockerInstall `json:"installed,omitempty"`
	Notes     []string        `json:"notes,omitempty"`
}

// dockerOutcome is the outcome of one command.
type dockerOutcome struct {
	Command  string `json:"command"`
	ExitCode int    `json:"exit_code"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	Success  bool   `json:"success"`

	// Links to the whole stream if only its head and tail are here.
	StdoutURL string `json:"stdout_url,omitempty"`
	StderrURL string `json:"stderr_url,omitempty"`
}

// dockerInstall is a package that was installed for a program, or failed to install.
type dockerInstall struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Status  string `json:"status"`
	Why     string `json:"why,omitempty"`
	Message string `json:"message,omitempty"`
}

// dockerExec runs commands until one fails, or their results are too long for one answer. Each job after the first counts as a further request.
func dockerExec(ctx context.Context, c *Call) (any, error) {
	p, err := findDockerTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	out := dockerExecuted{Success: true, Results: []dockerOutcome{}}
	var results execResults
	for i, group := range commandGroups(c.Texts("commands")) {
		if i > 0 {
			err := results.keep(ctx)
			if err == nil && c.more != nil {
				err = c.more(ctx)
			}
			if err != nil { // what has run is worth an answer
				out.Notes = append(out.Notes, "The commands from "+farm.Shorten(group[0])+" on were not run: "+farm.MessageOf(err))
				break
			}
		}
		job, err := c.finish(ctx, func(wait time.Duration) (wire.Job, error) {
			r := wire.CommandRequest{Commands: readyCommands(group), AutoInstall: mayBePython(group[0]), TimeoutSeconds: new(commandSeconds), Env: p.env()}
			job, err := c.Farm.Command(ctx, p.id, r, wait)
			if farm.CodeOf(err) == farm.CodeInvalid { // the farm may allow a shorter timeout only
				r.TimeoutSeconds = nil
				job, err = c.Farm.Command(ctx, p.id, r, wait)
			}
			return job, err
		})
		if i > 0 && farm.CodeOf(err) == farm.CodeExhausted { // likewise
			out.Success = false
			out.Notes = append(out.Notes, "There is no result of the commands from "+farm.Shorten(group[0])+" on: "+farm.MessageOf(err))
			break
		}
		if err != nil {
			return nil, err
		}
		if job.State == string(farm.JobFailed) || job.State == string(farm.JobLost) {
			return nil, farm.Errorf(farm.CodeUnavailable, "%s", unfinished(&job))
		}
		results.add(&job)
		if !out.add(&job, group) {
			break
		}
	}
	return out, nil
}

// execResults counts the results of a call's jobs, in JSON: of all, and of the last.
type execResults struct{ all, last int64 }

func (e *execResults) add(job *wire.Job) {
	e.last = 0
	if job.Result == nil || job.Result.Command == nil {
		return
	}
	r := job.Result.Command
	n := (len(r.Results) + len(r.Installed) + len(r.Notes)) * outcomeBytes
	for _, one := range r.Results {
		n += farm.Quoted(one.Stdout) + farm.Quoted(one.Stderr)
	}
	for _, one := range r.Installed {
		n += farm.Quoted(one.Name) + farm.Quoted(one.Version) + farm.Quoted(one.Why) + farm.Quoted(one.Message)
	}
	for _, note := range r.Notes {
		n += farm.Quoted(note)
	}
	e.last = int64(n)
	e.all += e.last
}

// keep keeps the last results charged until the answer is written, while another job runs, or says why none may start.
func (e *execResults) keep(ctx context.Context) error {
	if e.all > maxExecBytes {
		return farm.Errorf(farm.CodeTooLarge, "The results so far have %d bytes, and beyond %d no other command starts. Run the rest in another call, and write long output to files.", e.all, maxExecBytes)
	}
	err := budget.Pin(ctx, e.last*budget.BodyWeight)
	if farm.CodeOf(err) == farm.CodeExhausted {
		return farm.Errorf(farm.CodeExhausted, "This server has no memory for more results now. Run the rest in another call.")
	}
	return err
}

// env sets PWD, so that a shell names the working directory as the tools do.
func (t dockerTarget) env() map[string]string {
	if t.base == dockerApp && t.workspace != "" {
		return nil
	}
	return map[string]string{"PWD": t.base}
}

// commandGroups splits commands so that each one that may start a Python program starts a job of its own. Its packages are then determined
// from the files that earlier commands wrote.
func commandGroups(commands []string) [][]string {
	var all [][]string
	for _, command := range commands {
		if n := len(all); n == 0 || mayBePython(command) || len(all[n-1]) == maxTogether {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], command)
	}
	return all
}

func mayBePython(command string) bool { return strings.Contains(command, "py") }

// readyCommands replaces empty commands, which the farm refuses, by one that does nothing.
func readyCommands(group []string) []string {
	commands := slices.Clone(group)
	for i := range commands {
		if commands[i] == "" {
			commands[i] = ":"
		}
	}
	return commands
}

// add adds the outcome of a job. It reports whether the next commands should run.
func (e *dockerExecuted) add(job *wire.Job, group []string) bool {
	ok := job.State == string(farm.JobCompleted)
	before := len(e.Results)
	if job.Result != nil && job.Result.Command != nil {
		r := job.Result.Command
		for i, one := range r.Results[:min(len(r.Results), len(group))] {
			e.Results = append(e.Results, dockerOutcome{
				Command: group[i], ExitCode: one.ExitCode, Stdout: one.Stdout, Stderr: one.Stderr, Success: one.ExitCode == 0,
				StdoutURL: wholeStream(r.Artifacts, i+1, "stdout", one.Truncated.Stdout), StderrURL: wholeStream(r.Artifacts, i+1, "stderr", one.Truncated.Stderr),
			})
		}
		for _, one := range r.Installed {
			e.Installed = append(e.Installed, dockerInstall{Name: one.Name, Version: one.Version, Status: one.Status, Why: one.Why, Message: one.Message})
		}
		e.Notes = append(e.Notes, farm.NotesWith("pip install in a command", "write_file_sandbox", job.SandboxID, r.Notes)...)
		ok = ok && !anyFailed(r)
	}
	if job.State != string(farm.JobCompleted) {
		e.stopped(unfinished(job), before, group)
	}
	return ok
}

// stoppedExit is the exit code of a command that was killed.
const stoppedExit = 137

// stopped describes the command that ran when its job was stopped.
func (e *dockerExecuted) stopped(why string, before int, group []string) {
	at := len(e.Results) - 1
	if ran := len(e.Results) - before; ran == 0 || e.Results[at].Success && ran < len(group) {
		e.Results = append(e.Results, dockerOutcome{Command: group[ran], ExitCode: stoppedExit})
		at++
	}
	last := &e.Results[at]
	if last.ExitCode == 0 {
		last.ExitCode = stoppedExit
	}
	last.Success, last.Stderr = false, last.Stderr+why+"\n"
}

func anyFailed(r *wire.CommandResult) bool {
	return slices.ContainsFunc(r.Results, func(c wire.CommandOutcome) bool { return c.ExitCode != 0 })
}
