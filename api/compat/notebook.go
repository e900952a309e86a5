package compat

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// notebookSeconds is the timeout of code, if the farm allows that much. The original has no timeout, but stops code that prints
	// nothing for ten seconds.
	notebookSeconds = 3600
	// notebookCloseWait limits the wait for a close, which continues without the caller.
	notebookCloseWait = 30 * time.Second
)

// Notebook implements the routes of the system "LLM Python Code Sandbox" (simple_sandbox) for one caller: kernels that keep their
// variables, in the original's words, JSON shapes and errors. Where the original's README and source disagree, both forms work.
type Notebook struct {
	call    *Call
	farm    Farm
	largest int64 // displayed value that an answer contains
	left    int64 // bytes of large displayed values that this one may contain
}

// NewNotebook makes the service of a caller.
func NewNotebook(c *Call) *Notebook {
	return &Notebook{call: c, farm: c.Farm, largest: richBytes, left: richBytes}
}

// finish starts a job and waits for its end, as long as the caller is connected.
func (n *Notebook) finish(ctx context.Context, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	return n.call.finish(ctx, begin)
}

// notebookCreated is the answer to a create.
type notebookCreated struct {
	SandboxID string `json:"sandbox_id"`
}

// Create creates a sandbox and waits until it is ready. It has no idle limit and lives for the farm's default, a day.
func (n *Notebook) Create(ctx context.Context) (notebookCreated, error) {
	idle := 0
	var made wire.Created
	job, err := n.finish(ctx, func(wait time.Duration) (wire.Job, error) {
		var err error
		made, err = n.farm.CreateSandbox(ctx, wire.CreateRequest{IdleSeconds: &idle}, wait)
		return made.Job, err
	})
	if err == nil {
		err = notebookEnded(&job)
	}
	if err != nil {
		n.call.drop(ctx, made.Sandbox.ID)
	}
	return notebookCreated{SandboxID: made.Sandbox.ID}, err
}

// notebookClosed is the answer to a close.
type notebookClosed struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// Close closes a sandbox and stops everything in it.
func (n *Notebook) Close(ctx context.Context, id string) (notebookClosed, error) {
	if err := n.open(ctx, id); err != nil {
		return notebookClosed{}, err
	}
	if _, err := n.farm.CloseSandbox(ctx, id, notebookCloseWait); err != nil {
		return notebookClosed{}, n.recheck(ctx, id, err)
	}
	return notebookClosed{Status: "success", Message: "Sandbox closed"}, nil
}

// notebookListed is one entry of the list.
type notebookListed struct {
	CreatedAt float64 `json:"created_at"` // seconds since 1970
}

// List returns the sandboxes that accept work, by id.
func (n *Notebook) List(ctx context.Context) (map[string]notebookListed, error) {
	boxes, err := n.farm.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]notebookListed{}
	for _, box := range boxes {
		if farm.SandboxState(box.State).Accepts() {
			found[box.ID] = notebookListed{CreatedAt: float64(box.CreatedAt.UnixMicro()) / 1e6}
		}
	}
	return found, nil
}

// notebookEnded returns an error for a job that is not completed.
func notebookEnded(job *wire.Job) error {
	switch {
	case job.State == string(farm.JobCompleted):
		return nil
	case !job.Final():
		return farm.Errorf(farm.CodeUnavailable, "The server is stopping. The job %s continues: read it at %s.", job.ID, job.Links.Self)
	case job.Error != nil && job.Error.Code != "":
		return farm.Errorf(farm.Code(job.Error.Code), "%s", job.Error.Message)
	default:
		return farm.Errorf(farm.CodeUnavailable, "The job %s ended as %s.", job.ID, job.State)
	}
}

// notebookExecuted is the answer to code in a JSON body.
type notebookExecuted struct {
	Stdout  []string           `json:"stdout"`
	Stderr  []string           `json:"stderr"`
	Error   *notebookCodeError `json:"error"`
	Results []notebookRich     `json:"results"`
	notebookLinks
}

// notebookLinks lead to the whole stream if the answer has only its head and tail.
type notebookLinks struct {
	StdoutURL string `json:"stdout_url,omitempty"`
	StderrURL string `json:"stderr_url,omitempty"`
}

// notebookPrinted is the answer to code that is the plain body.
type notebookPrinted struct {
	Stdout    string         `json:"stdout"`
	Stderr    string         `json:"stderr"`
	Error     string         `json:"error"` // name of the exception; empty: none
	Traceback string         `json:"traceback"`
	Results   []notebookRich `json:"results"`
	notebookLinks
}

// notebookCodeError is an exception of the caller's code.
type notebookCodeError struct {
	Name      string   `json:"name"`
	Value     string   `json:"value"`
	Traceback []string `json:"traceback"`
}

// Print converts the answer to strings.
func (e notebookExecuted) Print() notebookPrinted {
	p := notebookPrinted{Stdout: strings.Join(e.Stdout, ""), Stderr: strings.Join(e.Stderr, ""), Results: e.Results, notebookLinks: e.notebookLinks}
	if e.Error != nil {
		p.Error, p.Traceback = e.Error.Name, strings.Join(e.Error.Traceback, "\n")
	}
	return p
}

// Execute runs code in the sandbox's kernel and waits for its end. Code that raises is a normal answer.
func (n *Notebook) Execute(ctx context.Context, id, code string) (notebookExecuted, error) {
	if err := n.open(ctx, id); err != nil {
		return notebookExecuted{}, err
	}
	if strings.TrimSpace(code) == "" {
		return notebookExecuted{Stdout: []string{}, Stderr: []string{}, Results: []notebookRich{}}, nil
	}
	job, err := n.execute(ctx, id, wire.ExecuteRequest{Code: code, TimeoutSeconds: new(notebookSeconds)})
	if farm.CodeOf(err) == farm.CodeInvalid { // the farm may allow a shorter timeout only
		job, err = n.execute(ctx, id, wire.ExecuteRequest{Code: code})
	}
	if err != nil {
		return notebookExecuted{}, n.recheck(ctx, id, err)
	}
	return n.executed(ctx, &job)
}

func (n *Notebook) execute(ctx context.Context, id string, r wire.ExecuteRequest) (wire.Job, error) {
	return n.finish(ctx, func(wait time.Duration) (wire.Job, error) { return n.farm.Execute(ctx, id, r, wait) })
}

// executed reads the result. Code that was stopped, or whose kernel died, is an error of the code, never an empty success.
func (n *Notebook) executed(ctx context.Context, job *wire.Job) (notebookExecuted, error) {
	state := farm.JobState(job.State)
	stopped := state == farm.JobTimedOut || state == farm.JobCanceled
	if !stopped {
		if err := notebookEnded(job); err != nil {
			return notebookExecuted{}, n.recheck(ctx, job.SandboxID, err)
		}
	}
	out := notebookExecuted{Stdout: []string{}, Stderr: []string{}, Results: []notebookRich{}}
	exit := 0
	if job.Result != nil && job.Result.Execute != nil {
		e := job.Result.Execute
		var err error
		if out.Stdout, err = streamList(ctx, e.Stdout); err != nil {
			return notebookExecuted{}, err
		}
		if out.Stderr, err = streamList(ctx, e.Stderr); err != nil {
			return notebookExecuted{}, err
		}
		exit = e.ExitCode
		out.StdoutURL = wholeStream(e.Artifacts, 0, "stdout", e.Truncated.Stdout)
		out.StderrURL = wholeStream(e.Artifacts, 0, "stderr", e.Truncated.Stderr)
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

func raised(name, value string) *notebookCodeError {
	return &notebookCodeError{Name: name, Value: value, Traceback: []string{name + ": " + value}}
}

// escape matches terminal colours, which browsers and models cannot show.
var escape = regexp.MustCompile(`\x1b\[[0-9;]*[a-zA-Z]`)

// streamList is a stream as the original returns it: a list, without terminal colours. The error is that of ctx.
func streamList(ctx context.Context, stream string) ([]string, error) {
	if stream == "" {
		return []string{}, nil
	}
	leave, err := budget.Core(ctx, len(stream))
	if err != nil {
		return nil, err
	}
	defer leave()
	return []string{escape.ReplaceAllString(stream, "")}, nil
}

// notebookInstalled is the answer to an install, also to one that failed.
type notebookInstalled struct {
	Success bool   `json:"success"`
	Stdout  string `json:"stdout"`
	Stderr  string `json:"stderr"`
	Message string `json:"message"`
}

// Install installs a package into one sandbox, so that its running kernel can import it.
func (n *Notebook) Install(ctx context.Context, id, requirement string) (notebookInstalled, error) {
	if err := n.open(ctx, id); err != nil {
		return notebookInstalled{}, err
	}
	job, err := n.finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return n.farm.Install(ctx, id, wire.PackagesRequest{Packages: []string{requirement}}, wait)
	})
	if farm.CodeOf(err) == farm.CodeInvalid {
		return notebookInstalled{Stderr: farm.MessageOf(err), Message: "Failed to install: " + farm.MessageOf(err)}, nil
	}
	if err != nil {
		return notebookInstalled{}, n.recheck(ctx, id, err)
	}
	if job.Result == nil || job.Result.Install == nil {
		if err := notebookEnded(&job); err != nil {
			return notebookInstalled{}, n.recheck(ctx, id, err)
		}
		return notebookInstalled{Message: "Failed to install " + requirement}, nil
	}
	r := job.Result.Install
	result := notebookInstalled{Success: job.State == string(farm.JobCompleted), Stdout: r.Stdout, Stderr: r.Stderr}
	var messages []string
	for _, p := range r.Packages {
		if p.Status == string(farm.PackageInstalled) {
			messages = append(messages, "Successfully installed "+strings.TrimSpace(p.Name+" "+p.Version))
		} else {
			result.Success = false
			messages = append(messages, "Failed to install "+p.Name)
		}
		if p.Message != "" {
			messages = append(messages, p.Message)
		}
	}
	if job.Error != nil {
		messages = append(messages, job.Error.Message)
	}
	result.Message = strings.Join(messages, ". ")
	return result, nil
}

// richBytes bounds the displayed values that an answer reads from the object store, together: they are in memory at once. richToolBytes is the
// largest of them for a tool, whose answer must fit into one message, where it may stand twice. A larger value is a link.
const (
	richBytes     = 16 << 20
	richToolBytes = 320 << 10
)

// notebookRich is one MIME type of one displayed value, as a kernel sends it: text and markup as it is, JSON as a value, anything else in
// base64.
type notebookRich struct {
	Display int    `json:"display,omitempty"` // number of the displayed value; entries of one value share it, those of the first have none
	Type    string `json:"type"`
	Data    any    `json:"data"`
	URL     string `json:"url,omitempty"` // in the place of data that is too large
}

// rich converts an entry of a displayed value. One that the farm moved to the object store is read back if it is small enough, and this process has
// memory for it.
func (n *Notebook) rich(ctx context.Context, r wire.Rich) notebookRich {
	out := notebookRich{Display: r.Display, Type: r.Mime, Data: r.Data, URL: r.URL}
	if r.ArtifactID == "" {
		if text, ok := r.Text(); ok {
			out.Data = textOrJSON(r.Mime, []byte(text))
		}
		return out
	}
	found, err := n.farm.Artifact(ctx, r.ArtifactID, min(n.largest, n.left))
	text := strings.HasPrefix(r.Mime, "text/") || wire.IsMarkup(r.Mime)
	if err == nil && text {
		err = budget.Quoting(ctx, found.Content, 1)
	}
	if farm.CodeOf(err) == farm.CodeExhausted {
		n.left = 0 // the next would wait as long
	}
	if err != nil || found.Content == nil {
		return out // the caller has the link
	}
	n.left -= int64(len(found.Content))
	out.URL = ""
	if text {
		out.Data = textOrJSON(r.Mime, found.Content)
	} else {
		out.Data = base64.StdEncoding.EncodeToString(found.Content)
	}
	return out
}

func textOrJSON(mime string, raw []byte) any {
	if wire.IsJSON(mime) && json.Valid(raw) {
		return json.RawMessage(raw)
	}
	return string(raw)
}
