package notebook

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Executed is the answer to code in a JSON body.
type Executed struct {
	Stdout  []string   `json:"stdout"`
	Stderr  []string   `json:"stderr"`
	Error   *CodeError `json:"error"`
	Results []Rich     `json:"results"`
	Links
}

// Links lead to the whole stream if the answer has only its head and tail.
type Links struct {
	StdoutURL string `json:"stdout_url,omitempty"`
	StderrURL string `json:"stderr_url,omitempty"`
}

// Printed is the answer to code that is the plain body.
type Printed struct {
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Error     string `json:"error"` // name of the exception; empty: none
	Traceback string `json:"traceback"`
	Results   []Rich `json:"results"`
	Links
}

// CodeError is an exception of the caller's code.
type CodeError struct {
	Name      string   `json:"name"`
	Value     string   `json:"value"`
	Traceback []string `json:"traceback"`
}

// Print converts the answer to strings.
func (e Executed) Print() Printed {
	p := Printed{Stdout: strings.Join(e.Stdout, ""), Stderr: strings.Join(e.Stderr, ""), Results: e.Results, Links: e.Links}
	if e.Error != nil {
		p.Error, p.Traceback = e.Error.Name, strings.Join(e.Error.Traceback, "\n")
	}
	return p
}

// Execute runs code in the sandbox's kernel and waits for its end. Code that raises is a normal answer.
func (n *Service) Execute(ctx context.Context, id, code string) (Executed, error) {
	if err := n.open(ctx, id); err != nil {
		return Executed{}, err
	}
	if strings.TrimSpace(code) == "" {
		return Executed{Stdout: []string{}, Stderr: []string{}, Results: []Rich{}}, nil
	}
	job, err := n.execute(ctx, id, wire.ExecuteRequest{Code: code, TimeoutSeconds: new(codeSeconds)})
	if farm.CodeOf(err) == farm.CodeInvalid { // the farm may allow a shorter timeout only
		job, err = n.execute(ctx, id, wire.ExecuteRequest{Code: code})
	}
	if err != nil {
		return Executed{}, n.recheck(ctx, id, err)
	}
	return n.executed(ctx, &job)
}

func (n *Service) execute(ctx context.Context, id string, r wire.ExecuteRequest) (wire.Job, error) {
	return n.finish(ctx, func(wait time.Duration) (wire.Job, error) { return n.farm.Execute(ctx, id, r, wait) })
}

// executed reads the result. Code that was stopped, or whose kernel died, is an error of the code, never an empty success.
func (n *Service) executed(ctx context.Context, job *wire.Job) (Executed, error) {
	state := farm.JobState(job.State)
	stopped := state == farm.JobTimedOut || state == farm.JobCanceled
	if !stopped {
		if err := ended(job); err != nil {
			return Executed{}, n.recheck(ctx, job.SandboxID, err)
		}
	}
	out := Executed{Stdout: []string{}, Stderr: []string{}, Results: []Rich{}}
	exit := 0
	if job.Result != nil && job.Result.Execute != nil {
		e := job.Result.Execute
		out.Stdout, out.Stderr, exit = streamList(e.Stdout), streamList(e.Stderr), e.ExitCode
		out.StdoutURL = toolset.Whole(e.Artifacts, 0, "stdout", e.Truncated.Stdout)
		out.StderrURL = toolset.Whole(e.Artifacts, 0, "stderr", e.Truncated.Stderr)
		if e.Error != nil {
			out.Error = raised(e.Error.Name, e.Error.Value)
			if len(e.Error.Traceback) > 0 { // there is none if the kernel died
				out.Error.Traceback = e.Error.Traceback
			}
		}
		for _, v := range wire.Values(e.Results) {
			for _, r := range v {
				out.Results = append(out.Results, n.rich(ctx, r))
			}
		}
	}
	switch {
	case out.Error != nil:
	case state == farm.JobTimedOut:
		out.Error = raised("TimeoutError", fmt.Sprintf("the code was stopped after %.0f seconds", job.Timings.RunMS/1000))
	case state == farm.JobCanceled:
		out.Error = raised("KeyboardInterrupt", "the code was stopped")
	case exit != 0:
		out.Error = raised("SystemExit", fmt.Sprint(exit))
	}
	return out, nil
}

func raised(name, value string) *CodeError {
	return &CodeError{Name: name, Value: value, Traceback: []string{name + ": " + value}}
}

// escape matches terminal colours, which browsers and models cannot show.
var escape = regexp.MustCompile(`\x1b\[[0-9;]*[a-zA-Z]`)

// streamList is a stream as the original returns it: a list, without terminal colours.
func streamList(stream string) []string {
	if stream == "" {
		return []string{}
	}
	return []string{escape.ReplaceAllString(stream, "")}
}
