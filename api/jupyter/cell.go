package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// eventWait is how long one question for events waits.
const eventWait = 50 * time.Second

// executeContent is the content of an execute_request.
type executeContent struct {
	Code         string            `json:"code"`
	Silent       bool              `json:"silent"`
	StopOnError  *bool             `json:"stop_on_error"`
	AllowStdin   bool              `json:"allow_stdin"`
	Expressions  map[string]string `json:"user_expressions"`
	StoreHistory *bool             `json:"store_history"`
}

// cell runs a cell: a job of the sandbox, whose events become messages.
func (s *session) cell(ctx context.Context, w *work) {
	var content executeContent
	if err := json.Unmarshal(w.content, &content); err != nil {
		s.fail(w, farm.Invalidf("The content of the execute_request cannot be read."))
		return
	}
	k := s.kernel
	s.status(w, stateBusy)
	if !content.Silent {
		s.iopub(w, "execute_input", map[string]any{"code": content.Code, "execution_count": k.counted(0) + 1})
	}
	if content.Code == "" {
		s.finish(ctx, w, content, &wire.Job{State: string(farm.JobCompleted), Result: &wire.Result{Execute: &wire.ExecuteResult{ExecutionCount: k.counted(0)}}})
		return
	}
	timeout, language, kernel := k.server.cfg.Service.Bounds().TimeoutMaxSeconds, k.language, kernelContext
	defer k.place(w.header.ID)()
	out, err := k.server.cfg.Service.Execute(ctx, service.Call{
		Tenant: k.ref.Tenant, Cell: &farm.Cell{Session: s.id, Message: w.header.ID, Input: content.AllowStdin},
	}, k.ref.ID, wire.ExecuteRequest{Code: content.Code, Language: &language, Context: &kernel, TimeoutSeconds: &timeout})
	if err != nil {
		s.refused(ctx, w, content, err)
		return
	}
	content.Code, w.content = "", nil // the job has the code
	w.release()
	w.job = out.Job.ID
	job, err := s.follow(ctx, w)
	if err != nil {
		if ctx.Err() == nil {
			s.refused(ctx, w, content, err)
		}
		return // the server stops: the client comes again, and gets the output then
	}
	s.finish(ctx, w, content, job)
}

// replay sends the output of a cell that was sent before once more, and its end.
func (s *session) replay(ctx context.Context, w *work) {
	s.status(w, stateBusy)
	s.own(s.kernel.message(channelIOPub, "clear_output", w.header.raw, map[string]bool{"wait": false}))
	defer s.kernel.place(w.header.ID)()
	if job, err := s.follow(ctx, w); err == nil {
		s.finish(ctx, w, executeContent{}, job)
	}
}

// refused ends a cell that the farm did not run.
func (s *session) refused(ctx context.Context, w *work, content executeContent, err error) {
	text := farm.MessageOf(err)
	s.finish(ctx, w, content, &wire.Job{State: string(farm.JobFailed), Error: &wire.JobError{Code: string(farm.CodeOf(err)), Message: text}})
}

// follow sends the output of a cell's job until it has ended, and returns the job as it is then.
func (s *session) follow(ctx context.Context, w *work) (*wire.Job, error) {
	farmService, tenant := s.kernel.server.cfg.Service, s.kernel.ref.Tenant
	for {
		whole, err := s.stream(ctx, w)
		if err != nil {
			return nil, err
		}
		if !whole { // the client has come back
			s.own(s.kernel.message(channelIOPub, "clear_output", w.header.raw, map[string]bool{"wait": false}))
			continue
		}
		out, err := farmService.Job(ctx, tenant, w.job, eventWait)
		if err != nil {
			return nil, err
		}
		if out.Done() {
			return &out.Job, nil
		}
	}
}

// stream sends the output of a job from its beginning. It reports whether that was all, or whether it is to begin again.
func (s *session) stream(ctx context.Context, w *work) (whole bool, err error) {
	waiting, wake := context.WithCancel(ctx)
	defer wake()
	s.mu.Lock()
	s.wake, s.rewind = wake, false
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.wake = nil
		s.mu.Unlock()
	}()
	again := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.rewind
	}
	events, err := s.kernel.server.cfg.Service.Events(ctx, s.kernel.ref.Tenant, w.job, "")
	if err != nil {
		return false, err
	}
	defer events.Close()
	out := output{session: s, work: w}
	first := true
	for {
		batch, err := events.NextRecords(waiting, eventWait)
		if again() {
			return false, nil
		}
		if errors.Is(err, io.EOF) {
			out.flush()
			return true, ctx.Err()
		}
		if err != nil {
			return false, err
		}
		if first || s.kernel.talks() {
			s.kernel.pull(ctx) // what the kernel said between these outputs is known then
			first = false
		}
		for _, e := range batch {
			if e.Name == farm.EventState {
				continue
			}
			frame := frameOf(e.ID)
			s.kernel.reached(w.header.ID, frame-1)
			out.add(ctx, e)
			s.kernel.reached(w.header.ID, frame)
			if again() {
				return false, nil
			}
		}
		budget.Keep(ctx, 0) // what is sent is not held
	}
}

// frameOf is the number of the frame of which an event was made; at least 1.
func frameOf(event string) uint64 {
	number, _, _ := strings.Cut(event, "-")
	n, _ := strconv.ParseUint(number, 10, 63) // the store's ids are numbers
	return max(n, 1)
}

// finish sends how a cell has ended.
func (s *session) finish(ctx context.Context, w *work, content executeContent, job *wire.Job) {
	k := s.kernel
	reply := map[string]any{"status": "ok", "execution_count": k.counted(0), "user_expressions": map[string]any{}, "payload": []any{}}
	failure := failureOf(job)
	restarted := false
	if job.Result != nil && job.Result.Execute != nil {
		r := job.Result.Execute
		reply["execution_count"] = k.counted(r.ExecutionCount)
		restarted = r.KernelRestarted && failure != nil && (failure.Name == farm.ErrorKernelDied || failure.Name == farm.ErrorOutOfMemory)
	}
	if failure != nil {
		lines := failure.Traceback
		if len(lines) == 0 {
			lines = []string{failure.Name + ": " + failure.Value}
		}
		s.iopub(w, "error", map[string]any{"ename": failure.Name, "evalue": failure.Value, "traceback": lines})
		reply["status"], reply["ename"], reply["evalue"], reply["traceback"] = "error", failure.Name, failure.Value, lines
	} else if len(content.Expressions) > 0 {
		reply["user_expressions"] = s.expressions(ctx, content.Expressions)
	}
	if k.talks() {
		k.pull(ctx) // what the cell has told widgets comes before its end
	}
	k.reached(w.header.ID, math.MaxUint64)
	s.reply(w, reply)
	s.status(w, stateIdle)
	w.release()
	if restarted {
		k.restarted()
	}
	s.remember(w)
	if failure != nil && (content.StopOnError == nil || *content.StopOnError) && !content.Silent {
		s.abortCells()
	}
}

// abortCells ends the cells of this client that wait for their turn: one before them has failed.
func (s *session) abortCells() {
	s.mu.Lock()
	var kept, dropped []*work
	for _, w := range s.queue {
		if w.header.Type == "execute_request" && w.job == "" {
			dropped = append(dropped, w)
			s.bytes -= w.size
		} else {
			kept = append(kept, w)
		}
	}
	s.queue = kept
	s.mu.Unlock()
	for _, w := range dropped {
		s.aborted(w)
	}
}

// remember keeps a cell that has ended for a client whose connection breaks now.
func (s *session) remember(w *work) {
	if w.job == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := &work{job: w.job, ends: s.kernel.server.cfg.Now(), message: message{channel: w.channel, header: w.header, content: json.RawMessage("{}")}}
	s.ended = append(s.ended, kept)
	s.ended = s.ended[max(0, len(s.ended)-replayCells):]
}

// failureOf is the error of a job; nil: there is none.
func failureOf(job *wire.Job) *wire.CodeError {
	if job.Result != nil && job.Result.Execute != nil && job.Result.Execute.Error != nil {
		return job.Result.Execute.Error
	}
	switch {
	case job.State == string(farm.JobCompleted):
		return nil
	case job.State == string(farm.JobCanceled):
		return &wire.CodeError{Name: "KeyboardInterrupt", Value: "the job of the cell was canceled"}
	case job.State == string(farm.JobTimedOut):
		return &wire.CodeError{Name: "TimeoutError", Value: "the cell ran longer than a job may (limits.timeout_max_seconds)"}
	case job.Error != nil:
		return &wire.CodeError{Name: "FarmError", Value: job.Error.Message}
	default:
		return &wire.CodeError{Name: "FarmError", Value: "the job of the cell is " + job.State}
	}
}

// counted notes an execution count, and returns the newest one. 0 only asks.
func (k *kernel) counted(n int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n > 0 {
		k.count = n
	}
	return k.count
}

// restarted tells clients that the kernel has died and that a new one has taken its place.
func (k *kernel) restarted() {
	k.mu.Lock()
	k.count = 0
	k.mu.Unlock()
	k.tell("restarting", nil)
	k.tell(stateStarting, nil)
	k.tell(stateIdle, nil)
}
