package seed4

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// richBytes is the largest displayed value that stands in an answer. A larger one is a link.
const richBytes = 32 << 20

// Executed is the answer to code in a JSON body.
type Executed struct {
	Stdout  []string   `json:"stdout"`
	Stderr  []string   `json:"stderr"`
	Error   *CodeError `json:"error"`
	Results []Rich     `json:"results"`
}

// Printed is the answer to code that is the body itself.
type Printed struct {
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Error     string `json:"error"` // name of the exception; empty: none
	Traceback string `json:"traceback"`
	Results   []Rich `json:"results"`
}

// CodeError is an exception of the caller's code.
type CodeError struct {
	Name      string   `json:"name"`
	Value     string   `json:"value"`
	Traceback []string `json:"traceback"`
}

// Rich is one displayed value: text as it is, all else in base64.
type Rich struct {
	Type string `json:"type"`
	Data string `json:"data"`
	URL  string `json:"url,omitempty"` // in the place of data that is too large
}

// Print gives the same answer as strings.
func (e Executed) Print() Printed {
	p := Printed{Stdout: strings.Join(e.Stdout, ""), Stderr: strings.Join(e.Stderr, ""), Results: e.Results}
	if e.Error != nil {
		p.Error, p.Traceback = e.Error.Name, strings.Join(e.Error.Traceback, "\n")
	}
	return p
}

// Execute runs code in the sandbox's kernel and waits for its end. Code that raises is an answer.
func (n *Notebook) Execute(ctx context.Context, id, code string) (Executed, error) {
	if err := n.open(ctx, id); err != nil {
		return Executed{}, err
	}
	if strings.TrimSpace(code) == "" {
		return Executed{Stdout: []string{}, Stderr: []string{}, Results: []Rich{}}, nil
	}
	job, err := n.execute(ctx, id, wire.ExecuteRequest{Code: code, TimeoutSeconds: new(codeSeconds)})
	if farm.CodeOf(err) == farm.CodeInvalid { // the farm may allow less time
		job, err = n.execute(ctx, id, wire.ExecuteRequest{Code: code})
	}
	if err != nil {
		return Executed{}, n.gone(ctx, id, err)
	}
	return n.executed(ctx, &job)
}

func (n *Notebook) execute(ctx context.Context, id string, r wire.ExecuteRequest) (wire.Job, error) {
	return n.finish(ctx, func(wait time.Duration) (wire.Job, error) { return n.farm.Execute(ctx, id, r, wait) })
}

// executed reads the result. That code was stopped, or took its kernel along, is an error of the code, and never an empty
// success.
func (n *Notebook) executed(ctx context.Context, job *wire.Job) (Executed, error) {
	state := farm.JobState(job.State)
	stopped := state == farm.JobTimedOut || state == farm.JobCanceled
	if !stopped {
		if err := ended(job); err != nil {
			return Executed{}, n.gone(ctx, job.SandboxID, err)
		}
	}
	out := Executed{Stdout: []string{}, Stderr: []string{}, Results: []Rich{}}
	exit := 0
	if job.Result != nil && job.Result.Execute != nil {
		e := job.Result.Execute
		out.Stdout, out.Stderr, exit = some(e.Stdout), some(e.Stderr), e.ExitCode
		if e.Error != nil {
			out.Error = &CodeError{Name: e.Error.Name, Value: e.Error.Value, Traceback: e.Error.Traceback}
		}
		for _, r := range e.Results {
			out.Results = append(out.Results, n.rich(ctx, r))
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

// some is a stream as the list that the seed gives.
func some(stream string) []string {
	if stream == "" {
		return []string{}
	}
	return []string{stream}
}

// rich brings a displayed value along that was put aside for its size.
func (n *Notebook) rich(ctx context.Context, r wire.Rich) Rich {
	out := Rich{Type: r.Mime, Data: r.Data, URL: r.URL}
	if r.ArtifactID == "" {
		return out
	}
	found, err := n.farm.Artifact(ctx, r.ArtifactID, richBytes)
	if err != nil || found.Content == nil {
		return out // the link has to do
	}
	raw := found.Content
	out.URL = ""
	if strings.HasPrefix(r.Mime, "text/") || r.Mime == "application/json" || r.Mime == "image/svg+xml" {
		out.Data = string(raw)
	} else {
		out.Data = base64.StdEncoding.EncodeToString(raw)
	}
	return out
}
