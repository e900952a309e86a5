package e2b

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// restartTimeout bounds the restart of a kernel, whose start takes long on a busy host.
	restartTimeout = 90 * time.Second
	// atOnce is how long an execution may take whose end is awaited before its stream begins: that takes fewer calls of Redis.
	atOnce = 40 * time.Millisecond
	// cancelTimeout bounds the cancel of a job whose caller is gone, so that Redis cannot hold the goroutine.
	cancelTimeout = 10 * time.Second
)

// executeRequest is a request to execute code.
type executeRequest struct {
	Code      string            `json:"code"`
	ContextID *string           `json:"context_id"`
	Language  *string           `json:"language"`
	EnvVars   map[string]string `json:"env_vars"`
}

// request is the farm's request. The SDKs have timeouts of their own: they leave, which cancels the job.
func (i *interpreter) request(ctx context.Context, box Box, r executeRequest) (wire.ExecuteRequest, error) {
	at := farm.CodeContext{Name: standard, Language: python, Cwd: farm.Workspace}
	given := func(s *string) bool { return s != nil && *s != "" }
	switch {
	case given(r.ContextID) && given(r.Language):
		return wire.ExecuteRequest{}, rest.BadRequestf("Only one of context_id or language can be provided")
	case given(r.Language):
		at.Language = languageOf(*r.Language)
	case given(r.ContextID) && *r.ContextID != standard:
		var err error
		if at, err = i.find(ctx, box, *r.ContextID); err != nil {
			return wire.ExecuteRequest{}, err
		}
	}
	timeout := i.service.Bounds().TimeoutMaxSeconds
	return wire.ExecuteRequest{Code: r.Code, Language: &at.Language, Context: &at.Name, Env: Environment(r.EnvVars, at.Cwd), TimeoutSeconds: &timeout}, nil
}

// execute runs code, and streams what it does.
func (i *interpreter) execute(c *gin.Context, box Box) error {
	ctx := c.Request.Context()
	var r executeRequest
	if err := i.bind(c, &r); err != nil {
		return err
	}
	request, err := i.request(ctx, box, r)
	if err != nil {
		return err
	}
	out, err := i.service.Execute(ctx, service.Call{Tenant: box.Tenant, Data: true, Wait: atOnce}, box.ID, request)
	if err != nil {
		if out.Job.ID != "" { // it was accepted, and the caller is gone
			i.cancel(ctx, box, out.Job.ID)
		}
		return err
	}
	events, err := i.service.Events(ctx, box.Tenant, out.Job.ID, "")
	if err != nil {
		i.cancel(ctx, box, out.Job.ID)
		return err
	}
	defer events.Close()
	h := c.Writer.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	c.Status(http.StatusOK)
	s := &stream{out: c.Writer, service: i.service, now: i.now}
	if err := s.follow(ctx, events); err != nil || ctx.Err() != nil {
		i.cancel(ctx, box, out.Job.ID)
		panic(http.ErrAbortHandler) // nothing more can be said: what is missing must not look like an end
	}
	i.finish(ctx, s, box, &out.Job)
	return nil
}

// follow passes on the events of a job until its last one. An error means that the caller is gone, or that the events cannot be read.
func (s *stream) follow(ctx context.Context, events *service.Events) error {
	if err := rest.Send(s.out, nil); err != nil { // the SDKs wait for the headers only for a while
		return err
	}
	for {
		records, err := events.NextRecords(ctx, keepalive)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(records) == 0 {
			s.line(map[string]string{"type": "keepalive"})
		}
		for at := range records {
			if err := s.add(ctx, &records[at]); err != nil {
				return err
			}
		}
		if err := s.send(); err != nil {
			return err
		}
		budget.Keep(ctx, 0) // what is sent is not held
	}
}

// finish says how the code ended, by its job as it was read last. If the sandbox is gone, the stream breaks off: the SDKs ask then whether the
// sandbox runs.
func (i *interpreter) finish(ctx context.Context, s *stream, box Box, job *wire.Job) {
	if !job.Final() {
		out, err := i.service.Job(ctx, box.Tenant, job.ID, 0)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		job = &out.Job
	}
	if job.State != string(farm.JobCompleted) {
		now, err := i.service.Sandbox(ctx, box.Tenant, box.ID)
		if err != nil || !farm.SandboxState(now.State).Reachable() {
			panic(http.ErrAbortHandler)
		}
	}
	s.end(job)
	_ = s.send() // fails if the caller has left, who misses nothing then
}

// cancel stops the code of a caller who is gone.
func (i *interpreter) cancel(ctx context.Context, box Box, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	_, _ = i.service.Cancel(ctx, box.Tenant, id, 0) // a job that has ended cannot be canceled, and one that could not be has its timeout
}

// stream writes the lines of one execution.
type stream struct {
	out     http.ResponseWriter
	service *service.Service
	now     func() time.Time

	text  bytes.Buffer // lines that were not sent yet
	value value        // the displayed value whose types arrive
	large int64        // bytes of its types that were charged
}

// line adds a line. Each is one JSON object: an empty line breaks the SDKs.
func (s *stream) line(v any) {
	encoder := json.NewEncoder(&s.text) // ends with a line break
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(v) // strings, numbers, and JSON that was checked
}

// send sends the lines so far.
func (s *stream) send() error {
	if s.text.Len() == 0 {
		return nil
	}
	err := rest.Send(s.out, s.text.Bytes())
	s.text = bytes.Buffer{}
	return err
}

// textLine is a piece of stdout or stderr.
type textLine struct {
	Type      string `json:"type"`
	Text      string `json:"text"`
	Timestamp string `json:"timestamp"`
}

func (s *stream) write(name, text string) {
	s.line(textLine{name, text, s.now().UTC().Format(time.RFC3339Nano)})
}

// errorLine is an exception, or why there is no result.
type errorLine struct {
	Type      string `json:"type"`
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

func (s *stream) fail(name, value string, traceback []string) {
	s.line(errorLine{"error", name, value, strings.Join(traceback, "\n")})
}

// add adds the line of an event. E2B's interpreter passes on neither updates of values nor clears, so neither are they here.
func (s *stream) add(ctx context.Context, e *farm.Event) error {
	switch {
	case e.Name == farm.EventStdout || e.Name == farm.EventStderr:
		s.write(string(e.Name), e.Text)
	case e.Name == farm.EventProgress && e.Progress != nil: // it says what is not sent
		s.write(string(farm.EventStderr), "["+e.Progress.Message+"]\n")
	case e.Name == farm.EventDisplay && e.Display != nil && !e.Display.Update:
		return s.display(ctx, e.Display)
	}
	return nil
}

// end adds the last lines: the exception, the count, and the end.
func (s *stream) end(job *wire.Job) {
	result := &wire.ExecuteResult{}
	if job.Result != nil && job.Result.Execute != nil {
		result = job.Result.Execute
	}
	notes := ownWords(job.SandboxID, result.Notes)
	switch e := result.Error; {
	case job.State == string(farm.JobTimedOut):
		s.fail("TimeoutError", reason(job), notes)
	case job.State != string(farm.JobCompleted):
		s.fail("ExecutionError", reason(job), notes)
	case e != nil:
		s.fail(e.Name, e.Value, append(slices.Clone(e.Traceback), notes...))
	case result.ExitCode != 0 && result.FreshProcess:
		s.fail("ExitError", fmt.Sprintf("exit status %d", result.ExitCode), notes)
	case result.ExitCode != 0:
		s.fail("SystemExit", fmt.Sprint(result.ExitCode), notes)
	}
	if result.ExecutionCount > 0 {
		s.line(map[string]any{"type": "number_of_executions", "execution_count": result.ExecutionCount})
	}
	s.line(map[string]string{"type": "end_of_execution"})
}

// ownWords are notes of the farm as the end of a traceback, which the SDKs show, with what callers of E2B can do.
func ownWords(sandbox string, notes []string) []string {
	lines := farm.NotesWith("commands.run of pip install", "files.write", sandbox, notes)
	for i, note := range lines {
		lines[i] = "note: " + note
	}
	return lines
}

// reason says why a job did not complete.
func reason(job *wire.Job) string {
	switch {
	case job.Error != nil:
		return job.Error.Message
	case !job.Final():
		return "The farm's server stops. The code runs on: job " + job.ID + " will have the result."
	default:
		return "The execution is " + job.State + "."
	}
}

// maxValue bounds the large types of a displayed value in the stream together, in bytes: they are in memory at once. E2B's has no bound, and
// no links either.
const maxValue = 16 << 20

// costOfValue is how many bytes each byte of a large value takes: as it is, as base64, and as a line. Text has budget.Quoting in addition.
const costOfValue = 4

// value is a displayed value: its types, as far as they have arrived.
type value map[string]any

// keys are the names of the types that have one.
var keys = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpeg",
	"application/pdf": "pdf", "text/latex": "latex", "application/json": "json", "application/javascript": "javascript",
	"e2b/data": "data", "e2b/chart": "chart",
}

// display adds a type to the value that arrives, and a line when it is the last one.
func (s *stream) display(ctx context.Context, d *farm.RichResult) error {
	if s.value == nil {
		s.large = 0
		s.value = value{"type": "result", "is_main_result": d.Result}
	}
	content, ok, err := s.content(ctx, d)
	if err != nil {
		return err
	}
	if ok {
		s.value.put(d.Mime, content)
	}
	if d.More {
		return nil
	}
	if len(s.value) > 2 {
		s.line(s.value)
	}
	s.value = nil
	if s.large == 0 {
		return nil
	}
	err = s.send() // before the next: a Hold has no more than one large value at a time
	budget.Keep(ctx, 0)
	return err
}

// put adds one type.
func (v value) put(mime string, content any) {
	if key, ok := keys[mime]; ok {
		v[key] = content
		return
	}
	extra, _ := v["extra"].(map[string]any)
	if extra == nil {
		extra = map[string]any{}
		v["extra"] = extra
	}
	extra[mime] = content
}

// content is the content of one type: text, base64, or an object. It reports whether there is any.
func (s *stream) content(ctx context.Context, d *farm.RichResult) (any, bool, error) {
	text := d.Data
	plain := strings.HasPrefix(d.Mime, "text/")
	if d.Artifact != nil {
		if d.Artifact.Size > maxValue-s.large { // a Hold at its tenant's share would take any more for nothing
			s.leaveOut(d)
			return nil, false, nil
		}
		if err := budget.Charge(ctx, d.Artifact.Size*costOfValue); err != nil {
			return nil, false, err
		}
		s.large += d.Artifact.Size
		raw, err := s.service.Linked(ctx, d.Artifact)
		if farm.CodeOf(err) == farm.CodeNotFound { // replaced meanwhile
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		if text = string(raw); !plain && !textual(d.Mime) {
			text = base64.StdEncoding.EncodeToString(raw)
		} else if budget.Quoting(ctx, raw, 1) != nil {
			s.leaveOut(d)
			return nil, false, nil
		}
	} else if textual(d.Mime) {
		raw, err := base64.StdEncoding.DecodeString(d.Data)
		if err != nil {
			return nil, false, nil // the worker encoded it
		}
		text = string(raw)
	}
	if structured(d.Mime) {
		if !json.Valid([]byte(text)) {
			return nil, false, nil
		}
		return json.RawMessage(text), true, nil
	}
	if d.Mime == "text/plain" {
		text = unquoted(text)
	}
	return text, true, nil
}

// leaveOut says that a type is not in the stream.
func (s *stream) leaveOut(d *farm.RichResult) {
	s.write(string(farm.EventStderr), "[a displayed value of type "+d.Mime+" was left out: it is too large]\n")
}

// structured reports whether a type is an object in the stream.
func structured(mime string) bool {
	return strings.HasSuffix(mime, "json") || mime == "e2b/data" || mime == "e2b/chart"
}

// textual reports whether a type that is not text/* is text.
func textual(mime string) bool {
	return structured(mime) || strings.HasSuffix(mime, "+xml") || mime == "application/javascript" || mime == "application/xml"
}

// unquoted is text without the quotes around a string, as E2B has it.
func unquoted(text string) string {
	if n := len(text); n > 1 && text[0] == text[n-1] && (text[0] == '\'' || text[0] == '"') {
		return text[1 : n-1]
	}
	return text
}
