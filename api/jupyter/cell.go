package jupyter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
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

// stops reports whether an error of the cell ends those that wait behind it.
func (c *executeContent) stops() bool { return (c.StopOnError == nil || *c.StopOnError) && !c.Silent }

// unkept reports whether the cell is not to be counted.
func (c *executeContent) unkept() bool { return c.Silent || c.StoreHistory != nil && !*c.StoreHistory }

// expressionWeight is what an expression takes in memory beside its texts, in bytes.
const expressionWeight = 64

// expressionBytes is what the expressions take in memory.
func (c *executeContent) expressionBytes() (n int) {
	for name, text := range c.Expressions {
		n += len(name) + len(text) + expressionWeight
	}
	return n
}

// cell runs a cell: a job of the sandbox, whose events become messages.
func (s *session) cell(ctx context.Context, w *work) {
	if w.cell == nil {
		s.fail(w, farm.Invalidf("The content of the execute_request cannot be read."))
		return
	}
	if w.job == "" && w.refusal == nil && w.cell.Code != "" {
		s.submit(ctx, w)
	}
	if w.refusal != nil {
		s.refused(ctx, w, w.refusal)
		return
	}
	if w.job == "" {
		w.endSent = true // nothing runs, which concerns no other client
		s.begin(w)
		s.finish(ctx, w, &wire.Job{State: string(farm.JobCompleted), Result: &wire.Result{Execute: &wire.ExecuteResult{ExecutionCount: s.kernel.counted(0)}}})
		return
	}
	defer s.kernel.place(w.header.ID)()
	s.kernel.wasAsked()
	for {
		job, err := s.follow(ctx, w)
		switch {
		case ctx.Err() != nil:
			return // the server stops: the client comes again, and gets the output then
		case errors.Is(err, errLeft):
		case err != nil:
			s.finish(ctx, w, unreadable(err))
		case neverRan(job):
			s.aborted(w)
		default:
			s.finish(ctx, w, job)
		}
		if s.over(w) {
			return
		}
		w.again = true // the client has connected again
	}
}

// neverRan reports whether a job was canceled before it began.
func neverRan(job *wire.Job) bool {
	return job.State == string(farm.JobCanceled) && job.StartedAt == nil
}

// begin tells clients that a cell begins, or begins again for a client that has come back.
func (s *session) begin(w *work) {
	s.mu.Lock()
	s.rewind = false // who connects from now on gets all once more
	s.mu.Unlock()
	w.quiet = w.again || w.endSent
	s.status(w, stateBusy)
	if !w.cell.Silent && (w.cell.Code != "" || !w.again) {
		s.iopub(w, "execute_input", map[string]any{"code": w.cell.Code, "execution_count": s.kernel.counted(0) + 1})
	}
	if w.again {
		s.own(s.kernel.message(channelIOPub, "clear_output", w.header.raw, map[string]bool{"wait": false}))
	}
	if w.job == "" {
		w.release()
		return
	}
	small := w.kept(keptCode)
	w.message, w.cell.Code = small.message, small.cell.Code
	if w.cell.expressionBytes() <= keptCode { // else they are charged until they have been asked for
		w.release()
	}
}

// kept is the work of a cell whose job is known, without a code or expressions of more than a number of bytes: the job has the code.
func (w *work) kept(limit int) *work {
	cell := *w.cell
	if len(cell.Code) > limit {
		cell.Code = ""
	}
	if cell.expressionBytes() > limit {
		cell.Expressions = nil
	}
	return &work{message: message{channel: w.channel, header: w.header}, cell: &cell, job: w.job}
}

// over ends a cell, and keeps it for a client that comes back. If the client has come back since it began, it does not end: all is to be sent once more.
func (s *session) over(w *work) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rewind && len(s.sockets) > 0 {
		return false
	}
	s.current = nil
	if s.gone {
		return true
	}
	w.ends = s.kernel.server.cfg.Now()
	ended := w.kept(keptEnded)
	if len(ended.header.raw) > keptEnded {
		ended.header = executeHeader(w.header.ID, w.header.Session, w.ends)
	}
	ended.early, ended.again, ended.sent, ended.endSent, ended.ends = true, true, math.MaxInt, true, w.ends
	s.ended = append(slices.Delete(s.ended, 0, max(0, len(s.ended)+1-replayCells)), ended) // its array keeps none of those that are dropped
	return true
}

// refused ends a cell that the farm did not run, which concerns no other client.
func (s *session) refused(ctx context.Context, w *work, err error) {
	w.endSent = true
	s.begin(w)
	s.finish(ctx, w, unreadable(err))
	if w.cell.stops() {
		s.drop(cellHere)
	}
}

// unreadable is the end of a cell whose job cannot be read.
func unreadable(err error) *wire.Job {
	return &wire.Job{State: string(farm.JobFailed), Error: &wire.JobError{Code: string(farm.CodeOf(err)), Message: farm.MessageOf(err)}}
}

// follow sends the output of a cell's job until it has ended, and returns the job as it is then. errLeft: all that is left to do is to send it to the
// client again, which is not connected.
func (s *session) follow(ctx context.Context, w *work) (*wire.Job, error) {
	if w.endSent && !s.here() {
		return nil, errLeft
	}
	farmService, tenant := s.kernel.server.cfg.Service, s.kernel.ref.Tenant
	if w.early { // it may have been canceled while it waited
		if out, err := farmService.Job(ctx, tenant, w.job, 0); err == nil && neverRan(&out.Job) {
			s.mu.Lock()
			s.rewind = false
			s.mu.Unlock()
			return &out.Job, nil
		}
	}
	for {
		s.begin(w)
		whole, err := s.stream(ctx, w)
		if err != nil {
			return nil, err
		}
		if !whole {
			w.again = true // the client has connected again
			continue
		}
		out, err := farmService.Job(ctx, tenant, w.job, eventWait)
		if err != nil {
			return nil, err
		}
		for !out.Done() && err == nil {
			out, err = farmService.Job(ctx, tenant, w.job, eventWait)
		}
		return &out.Job, err
	}
}

// stream sends the output of a job: from its beginning, or, while the client is not connected, what the others have not got. It reports whether that was
// all, or whether it is to begin again. The error is errLeft as that of follow.
func (s *session) stream(ctx context.Context, w *work) (whole bool, err error) {
	waiting, wake := context.WithCancel(ctx)
	defer wake()
	s.mu.Lock()
	s.wake = wake
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.wake = nil
		s.mu.Unlock()
	}()
	n, from, first := 0, "", true
	if !s.here() && w.last != "" {
		n, from = w.sent, w.last
	}
	again := func() (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case len(s.sockets) > 0:
			return s.rewind, nil
		case w.endSent:
			return true, errLeft
		default:
			return n < w.sent, nil // nobody gets what was sent before
		}
	}
	events, err := s.kernel.server.cfg.Service.Events(ctx, s.kernel.ref.Tenant, w.job, from)
	if err != nil {
		return false, err
	}
	defer events.Close()
	out := output{session: s, work: w}
	for {
		if stop, err := again(); stop {
			return false, err
		}
		batch, err := events.NextRecords(waiting, eventWait)
		if stop, err := again(); stop || waiting.Err() != nil && ctx.Err() == nil { // it was woken by a client that has left since
			return false, err
		}
		if errors.Is(err, io.EOF) {
			out.flush(ctx)
			w.sent = max(n, w.sent)
			return true, ctx.Err()
		}
		if err != nil {
			return false, err
		}
		if first || s.kernel.talks() {
			s.kernel.pull(ctx) // what the kernel said between these outputs is known then
		}
		for _, e := range batch {
			if e.Name == farm.EventState {
				continue
			}
			n++
			w.quiet = n <= w.sent
			frame := frameOf(e.ID)
			s.kernel.reached(w.header.ID, frame-1)
			out.add(ctx, e)
			if n > w.sent && out.value == nil { // of a value all types are sent together
				w.sent, w.last = n, e.ID
			}
			s.kernel.reached(w.header.ID, frame)
			if stop, err := again(); stop {
				return false, err
			}
		}
		if first && w.again {
			s.kernel.askAgain(w)
		}
		first = false
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
func (s *session) finish(ctx context.Context, w *work, job *wire.Job) {
	k := s.kernel
	reply := map[string]any{"status": "ok", "execution_count": k.counted(0), "user_expressions": map[string]any{}, "payload": []any{}}
	failure := failureOf(job)
	w.quiet = w.endSent
	restarted := false
	if job.Result != nil && job.Result.Execute != nil {
		r := job.Result.Execute
		reply["execution_count"] = k.counted(r.ExecutionCount)
		notes := r.Notes // such as that values were left out
		if r.ExecutionCount == 1 && !w.cell.unkept() {
			notes = append(k.notInstalled(ctx), notes...)
		}
		for _, note := range notes {
			s.iopub(w, "stream", map[string]string{"name": "stderr", "text": "[" + note + "]\n"})
		}
		restarted = r.KernelRestarted && failure != nil && (failure.Name == farm.ErrorKernelDied || failure.Name == farm.ErrorOutOfMemory)
	}
	if failure != nil {
		lines := failure.Traceback
		if len(lines) == 0 {
			lines = []string{failure.Name + ": " + failure.Value}
		}
		s.iopub(w, "error", map[string]any{"ename": failure.Name, "evalue": failure.Value, "traceback": lines})
		reply["status"], reply["ename"], reply["evalue"], reply["traceback"] = "error", failure.Name, failure.Value, lines
	} else if len(w.cell.Expressions) > 0 {
		reply["user_expressions"] = s.expressions(ctx, w.cell.Expressions)
	}
	if k.talks() || restarted {
		k.pull(ctx) // the cell's messages to widgets come before its end, and so does that a restart was asked for
	}
	k.reached(w.header.ID, math.MaxUint64)
	s.reply(w, reply)
	s.status(w, stateIdle)
	first := !w.endSent
	w.endSent = true
	if first && restarted && !k.wasAsked() {
		k.restarted()
	}
	if first && failure != nil && w.cell.stops() {
		s.drop(cellHere)
	}
}

// notInstalled says which packages that were asked for with the kernel could not be installed. Its start has no other place to say so.
func (k *kernel) notInstalled(ctx context.Context) []string {
	jobs := k.server.cfg.Service
	failed, err := jobs.Jobs(ctx, k.ref.Tenant, service.JobQuery{
		SandboxID: k.ref.ID, Kinds: []string{string(farm.KindCreate)}, Outcome: string(farm.OutcomeFailed), Page: store.Page{Limit: 1},
	})
	if err != nil || len(failed.Items) == 0 {
		return nil // the cell has run: a note is not worth its error
	}
	out, err := jobs.Job(ctx, k.ref.Tenant, failed.Items[0].ID, 0)
	if err != nil || out.Job.Result == nil || out.Job.Result.Install == nil {
		return nil
	}
	var notes []string
	for _, one := range out.Job.Result.Install.Packages {
		if one.Status == string(farm.PackageFailed) {
			notes = append(notes, fmt.Sprintf("%s was not installed when the sandbox started: %s", one.Requested, one.Message))
		}
	}
	return notes
}

// failureOf is the error of a job; nil: there is none.
func failureOf(job *wire.Job) *wire.CodeError {
	if job.Result != nil && job.Result.Execute != nil && job.Result.Execute.Error != nil {
		failure := *job.Result.Execute.Error
		if failure.Name == farm.ErrorOutOfMemory {
			failure.Value = strings.Replace(failure.Value, farm.MoreMemory, "start a kernel with more memory (sandfarm jupyter --memory, or KERNEL_MEMORY_MB in its environment)", 1)
		}
		return &failure
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
	k.tell("restarting", nil)
	k.fresh()
}

// renewed tells clients that the kernel was restarted on request. The state restarting would be a crash to them: VS Code shows it as an error.
func (k *kernel) renewed() {
	k.mu.Lock()
	k.asked = true
	k.mu.Unlock()
	k.fresh()
}

// wasAsked reports whether a restart was asked for since it was called last.
func (k *kernel) wasAsked() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	asked := k.asked
	k.asked = false
	return asked
}

// fresh tells clients that there is a new kernel.
func (k *kernel) fresh() {
	k.mu.Lock()
	k.count = 0
	k.mu.Unlock()
	k.tell(stateStarting, nil)
	k.tell(stateIdle, nil)
}
