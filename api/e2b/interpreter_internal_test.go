package e2b

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func newStream() *stream {
	return &stream{now: func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC) }}
}

// lines are the lines so far, each of which must be JSON.
func (s *stream) lines(t *testing.T) []map[string]any {
	t.Helper()
	var list []map[string]any
	text := s.text.String()
	if text != "" && !strings.HasSuffix(text, "\n") {
		t.Fatalf("no line break at the end of %q", text)
	}
	for line := range strings.Lines(text) {
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		list = append(list, one)
	}
	return list
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func TestEventsBecomeLines(t *testing.T) {
	t.Parallel()
	show := func(d farm.RichResult) farm.Event { return farm.Event{Name: farm.EventDisplay, Display: &d} }
	const when = "2026-01-02T03:04:05.000006Z"
	for name, c := range map[string]struct {
		events []farm.Event
		want   []map[string]any
	}{
		"Text": {
			[]farm.Event{{Name: farm.EventStdout, Text: "a\n<b>"}, {Name: farm.EventStderr, Text: "c"}},
			[]map[string]any{{"type": "stdout", "text": "a\n<b>", "timestamp": when}, {"type": "stderr", "text": "c", "timestamp": when}},
		},
		"WholeValue": {
			[]farm.Event{
				show(farm.RichResult{Mime: "e2b/chart", Data: encoded(`{"type": "bar"}`), More: true}),
				show(farm.RichResult{Mime: "image/png", Data: "iVBO", More: true}),
				show(farm.RichResult{Mime: "image/svg+xml", Data: encoded("<svg/>"), More: true}),
				show(farm.RichResult{Mime: "application/vnd.x+json", Data: encoded(`[1]`), More: true}),
				show(farm.RichResult{Mime: "application/octet-stream", Data: "AAAA", More: true}),
				show(farm.RichResult{Mime: "text/plain", Data: "<Figure>"}),
			},
			[]map[string]any{{
				"type": "result", "is_main_result": false, "chart": map[string]any{"type": "bar"}, "png": "iVBO", "svg": "<svg/>", "text": "<Figure>",
				"extra": map[string]any{"application/vnd.x+json": []any{1.0}, "application/octet-stream": "AAAA"},
			}},
		},
		"MainResult": {
			[]farm.Event{show(farm.RichResult{Mime: "text/plain", Data: "'a'", Result: true}), show(farm.RichResult{Mime: "text/plain", Data: "'"})},
			[]map[string]any{{"type": "result", "is_main_result": true, "text": "a"}, {"type": "result", "is_main_result": false, "text": "'"}},
		},
		"BadJSON": {[]farm.Event{show(farm.RichResult{Mime: "application/json", Data: encoded("{"), More: true}), show(farm.RichResult{Mime: "e2b/data", Data: "!"})}, nil},
		"TooLarge": {
			[]farm.Event{show(farm.RichResult{Mime: "image/png", Artifact: &farm.Artifact{Size: maxValue + 1}})},
			[]map[string]any{{"type": "stderr", "text": "[a displayed value of type image/png was left out: it is too large]\n", "timestamp": when}},
		},
		"UpdatesAndClears": {
			[]farm.Event{show(farm.RichResult{Mime: "text/plain", Update: true}), {Name: farm.EventClear}, {Name: farm.EventState, State: farm.JobRunning}}, nil,
		},
		"Progress": {
			[]farm.Event{{Name: farm.EventProgress, Progress: &farm.Progress{Message: "no more"}}},
			[]map[string]any{{"type": "stderr", "text": "[no more]\n", "timestamp": when}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStream()
			for i := range c.events {
				if err := s.add(t.Context(), &c.events[i]); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(c.want, s.lines(t)); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

// The types of a value are in memory together, and the first may charge the tenant's whole share.
func TestLargeTypesOfAValueAreBoundedTogether(t *testing.T) {
	t.Parallel()
	ctx, own := budget.New(16<<20).With(t.Context(), "acme", 0)
	defer own.Release()
	s := newStream()
	s.large = maxValue - 10
	_, ok, err := s.content(ctx, &farm.RichResult{Mime: "image/png", Artifact: &farm.Artifact{Size: 11}})
	if ok || err != nil || own.Bytes() != 0 || len(s.lines(t)) != 1 {
		t.Errorf("read: %v, %v, %d bytes charged", ok, err, own.Bytes())
	}
}

func TestEndsBecomeLines(t *testing.T) {
	t.Parallel()
	ran := func(r wire.ExecuteResult) wire.Job {
		return wire.Job{State: "completed", Result: &wire.Result{Execute: &r}}
	}
	failure := func(name, value, traceback string) map[string]any {
		return map[string]any{"type": "error", "name": name, "value": value, "traceback": traceback}
	}
	count := map[string]any{"type": "number_of_executions", "execution_count": 2.0}
	for name, c := range map[string]struct {
		job  wire.Job
		want []map[string]any
	}{
		"OK":        {ran(wire.ExecuteResult{ExecutionCount: 2}), []map[string]any{count}},
		"Exception": {ran(wire.ExecuteResult{ExecutionCount: 2, ExitCode: 1, Error: &wire.CodeError{Name: "E", Value: "v", Traceback: []string{"a", "b"}}}), []map[string]any{failure("E", "v", "a\nb"), count}},
		"Notes": {
			wire.Job{SandboxID: "sbx_1", State: "completed", Result: &wire.Result{Execute: &wire.ExecuteResult{ExecutionCount: 2, ExitCode: 1, Error: &wire.CodeError{Name: "E", Value: "v", Traceback: []string{"a", "b"}}, Notes: []string{
				"Install it (POST /v1/sandboxes/sbx_1/packages)" + farm.OrAutoInstall + ".", "No file: " + farm.SendFile + "upload it first " + farm.UploadWays + ".", "No input." + farm.AskElsewhere,
			}}}},
			[]map[string]any{failure("E", "v", "a\nb\nnote: Install it (commands.run of pip install).\nnote: No file: upload it first (files.write).\nnote: No input."), count},
		},
		"Exit":  {ran(wire.ExecuteResult{ExecutionCount: 2, ExitCode: 3}), []map[string]any{failure("SystemExit", "3", ""), count}},
		"Shell": {ran(wire.ExecuteResult{ExitCode: 3, FreshProcess: true}), []map[string]any{failure("ExitError", "exit status 3", "")}},
		"NotedExit": {
			ran(wire.ExecuteResult{ExecutionCount: 2, ExitCode: 3, Notes: []string{"A.", "No input." + farm.AskElsewhere}}),
			[]map[string]any{failure("SystemExit", "3", "note: A.\nnote: No input."), count},
		},
		"NotedShell": {ran(wire.ExecuteResult{ExitCode: 3, FreshProcess: true, Notes: []string{"A."}}), []map[string]any{failure("ExitError", "exit status 3", "note: A.")}},
		"NotedTimeout": {
			wire.Job{State: "timed_out", Error: &wire.JobError{Message: "too long"}, Result: &wire.Result{Execute: &wire.ExecuteResult{Notes: []string{"A."}}}},
			[]map[string]any{failure("TimeoutError", "too long", "note: A.")},
		},
		"Timeout": {wire.Job{State: "timed_out", Error: &wire.JobError{Message: "too long"}}, []map[string]any{failure("TimeoutError", "too long", "")}},
		"Lost":    {wire.Job{State: "lost"}, []map[string]any{failure("ExecutionError", "The execution is lost.", "")}},
		"Running": {wire.Job{ID: "job_1", State: "running"}, []map[string]any{failure("ExecutionError", "The farm's server stops. The code runs on: job job_1 will have the result.", "")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStream()
			s.end(&c.job)
			if diff := cmp.Diff(append(c.want, map[string]any{"type": "end_of_execution"}), s.lines(t)); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

func TestIDsOfContexts(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]farm.CodeContext{
		"python-default": {Name: "default", Language: "python"}, "bash-a-b": {Name: "a-b", Language: "bash"}, "mine": {Name: "mine", Language: "python"}, "": {Language: "python"},
	} {
		if got := named(id); got != want {
			t.Errorf("named(%q) = %+v, want %+v", id, got, want)
		}
		if got := shown(want).ID; strings.Contains(id, "-") && got != id {
			t.Errorf("the id of %+v is %s", want, got)
		}
	}
}

// stored is an object store in which each object has the same content.
type stored struct {
	service.Blobs
	content string
}

func (s stored) Get(context.Context, string, int64, int64) (io.ReadCloser, blob.Info, error) {
	return io.NopCloser(strings.NewReader(s.content)), blob.Info{}, nil
}

// The values of a batch of events were all held at once, and charged as one.
func TestALargeValueIsSentBeforeTheNext(t *testing.T) {
	t.Parallel()
	ctx, own := budget.New(16<<20).With(t.Context(), "acme", 0)
	s := newStream()
	to := httptest.NewRecorder()
	s.out = to
	s.service = &service.Service{Deps: service.Deps{Blobs: stored{content: "<p>"}}}
	for i := range 2 {
		testbed.Must(t, s.display(ctx, &farm.RichResult{Mime: "text/html", Artifact: &farm.Artifact{Size: 3}}))
		testbed.Check(t, s.text.Len() == 0 && own.Bytes() == 0, "%d bytes wait, %d are charged after value %d", s.text.Len(), own.Bytes(), i)
	}
	testbed.Check(t, strings.Count(to.Body.String(), `"html":"`) == 2, "sent: %s", to.Body)
}

// A text of control characters takes six times its bytes as JSON.
func TestEscapesOfALargeValueAreCharged(t *testing.T) {
	t.Parallel()
	const size = 10_000
	for mime, more := range map[string]int64{"text/html": 10 * size, "image/svg+xml": 10 * size, "image/png": 0} {
		ctx, own := budget.New(16<<20).With(t.Context(), "acme", 0)
		s := newStream()
		s.service = &service.Service{Deps: service.Deps{Blobs: stored{content: strings.Repeat("\x01", size)}}}
		_, ok, err := s.content(ctx, &farm.RichResult{Mime: mime, Artifact: &farm.Artifact{Size: size}})
		if err != nil || !ok || own.Bytes() != costOfValue*size+more {
			t.Errorf("%s: read %v, %v, %d bytes charged", mime, ok, err, own.Bytes())
		}
		own.Release()
	}
}
