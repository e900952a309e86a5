package interpreter

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// stream writes the lines of one execution.
type stream struct {
	out     *rest.DeadlineWriter
	service *service.Service
	now     func() time.Time

	text  bytes.Buffer // lines that were not sent yet
	value value        // the displayed value whose types arrive
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
	err := s.out.Send(s.text.Bytes())
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

func (s *stream) fail(name, value, traceback string) {
	s.line(errorLine{"error", name, value, traceback})
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
	switch e := result.Error; {
	case job.State == string(farm.JobTimedOut):
		s.fail("TimeoutError", reason(job), "")
	case job.State != string(farm.JobCompleted):
		s.fail("ExecutionError", reason(job), "")
	case e != nil:
		s.fail(e.Name, e.Value, strings.Join(e.Traceback, "\n"))
	case result.ExitCode != 0 && result.FreshProcess:
		s.fail("ExitError", fmt.Sprintf("exit status %d", result.ExitCode), "")
	case result.ExitCode != 0:
		s.fail("SystemExit", fmt.Sprint(result.ExitCode), "")
	}
	if result.ExecutionCount > 0 {
		s.line(map[string]any{"type": "number_of_executions", "execution_count": result.ExecutionCount})
	}
	s.line(map[string]string{"type": "end_of_execution"})
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
