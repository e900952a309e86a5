package mcp

import (
	"context"
	"encoding/json"
	"iter"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// tailBytes is how much of the latest output one progress message has.
const tailBytes = 4 << 10

// progress sends progress messages to the caller of a running call. A nil progress sends none.
type progress struct {
	ctx   context.Context // it lives as long as its call
	token any
	begun time.Time
	last  float64
}

// tokenMax is the longest accepted token, which each message repeats; real clients use numbers and UUIDs.
const tokenMax = 1 << 10

// goodToken reports whether progress can be sent under a token. A call without a token, or with one that would make each message
// large, runs without progress.
func goodToken(token any) bool {
	switch token := token.(type) {
	case string:
		return len(token) <= tokenMax
	case float64, int, int64, json.Number:
		return true
	default:
		return false
	}
}

func newProgress(ctx context.Context, token any) *progress {
	return &progress{ctx: ctx, token: token, begun: time.Now()}
}

// tell sends one message. Its value is the seconds since the call began and always increases.
func (p *progress) tell(message string) {
	if p == nil {
		return
	}
	value := float64(time.Since(p.begun).Milliseconds()) / 1000
	if value <= p.last {
		value = p.last + 0.001
	}
	p.last = value
	// An error means that the caller disconnected, which ends the context of the call.
	_ = Notify(p.ctx, "notifications/progress", map[string]any{"progressToken": p.token, "progress": value, "message": message})
}

// work starts a job, or reads one, and waits.
type work func(wait time.Duration) (wire.Job, error)

// await starts or reads a job and waits for its end. A caller that asked for progress gets the job's output live.
func (c *call) await(wait time.Duration, begin work) (wire.Job, error) {
	return await(c.ctx, c.farm, c.progress, wait, begin)
}

// jobs is the part of a farm that follows jobs.
type jobs interface {
	Job(ctx context.Context, id string, wait time.Duration) (wire.Job, error)
	Events(ctx context.Context, jobID string) iter.Seq2[wire.Event, error]
}

func await(ctx context.Context, farm jobs, p *progress, wait time.Duration, begin work) (wire.Job, error) {
	if p == nil || wait <= 0 {
		return begin(wait)
	}
	until := time.Now().Add(wait)
	job, err := begin(0)
	if err != nil || job.Final() {
		return job, err
	}
	follow(ctx, farm, p, job.ID, until)
	for {
		asked := time.Now()
		timeout := max(0, min(time.Until(until), progressQuiet))
		job, err = farm.Job(ctx, job.ID, timeout)
		if err != nil || job.Final() || timeout < progressQuiet || time.Since(asked) < timeout/2 {
			return job, err
		}
		p.tell("still running")
	}
}

// follow reports a job's events until the job ends, the time is up, or the events cannot be read.
func follow(ctx context.Context, farm jobs, p *progress, jobID string, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	events := make(chan wire.Event)
	go func() {
		defer close(events)
		for event, err := range farm.Events(ctx, jobID) {
			if err != nil {
				return
			}
			select {
			case events <- event:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() {
		cancel()
		for range events { //nolint:revive // the reader ends before the call does
		}
	}()
	live := &live{progress: p}
	pause, quiet := time.NewTicker(progressPause), time.NewTimer(progressQuiet)
	defer pause.Stop()
	defer quiet.Stop()
	for {
		select {
		case event, ok := <-events:
			if !ok || live.take(event) {
				live.flush()
				return
			}
		case <-pause.C:
			if live.flush() {
				quiet.Reset(progressQuiet)
			}
		case <-quiet.C:
			p.tell("still running")
			quiet.Reset(progressQuiet)
		case <-ctx.Done():
			live.flush()
			return
		}
	}
}

// live collects what is new in a job between two messages.
type live struct {
	progress *progress
	pending  strings.Builder
	cut      bool
	clearing bool // what is pending goes when more comes
}

// take adds an event and reports whether it is the last one.
func (l *live) take(e wire.Event) bool {
	switch e.Name {
	case "stdout", "stderr":
		var data wire.TextData
		if json.Unmarshal(e.Data, &data) == nil {
			l.add(data.Text)
		}
	case "progress":
		var data wire.ProgressData
		if json.Unmarshal(e.Data, &data) == nil && data.Message != "" {
			l.add(data.Message + "\n")
		}
	case "display":
		var data wire.DisplayData
		if json.Unmarshal(e.Data, &data) == nil && strings.HasPrefix(data.Mime, "image/") && !data.Update {
			l.add("[a picture, " + data.Mime + "]\n")
		}
	case "clear": // what came before is a former state of an animation
		l.clearing = true
	case "artifact":
		var data wire.Artifact
		if json.Unmarshal(e.Data, &data) == nil {
			l.add("[saved " + data.Path + "]\n")
		}
	case "state":
		var data wire.StateData
		if json.Unmarshal(e.Data, &data) == nil {
			return (&wire.Job{State: data.State}).Final()
		}
	}
	return false
}

// add appends text and keeps only the latest part.
func (l *live) add(s string) {
	if l.clearing {
		l.pending.Reset()
		l.cut, l.clearing = false, false
	}
	l.pending.WriteString(s)
	if l.pending.Len() > 2*tailBytes {
		kept := tailOf(l.pending.String(), tailBytes)
		l.pending.Reset()
		l.pending.WriteString(kept)
		l.cut = true
	}
}

// flush sends what is new and reports whether there was anything.
func (l *live) flush() bool {
	if l.pending.Len() == 0 {
		return false
	}
	message := tailOf(l.pending.String(), tailBytes)
	if l.cut || len(message) < l.pending.Len() {
		message = "…" + message
	}
	l.pending.Reset()
	l.cut = false
	l.progress.tell(message)
	return true
}

// tailOf is the end of a text, at most n bytes, starting with a whole character.
func tailOf(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[len(s)-n:], "")
}

// soFar is what a running job has printed.
type soFar struct {
	stdout, stderr printed
	clearing       bool // the next output replaces what is there
}

// printed is one stream, without its middle once it is several times as long as an answer takes.
type printed struct {
	text  []byte
	whole int64 // bytes
}

func (p *printed) add(s string, limit int) {
	p.whole += int64(len(s))
	if p.text = append(p.text, s...); len(p.text) > 4*limit {
		p.text = append(p.text[:limit/2], p.text[len(p.text)-limit:]...)
	}
}

// cut is the stream as an answer shows it, and whether something is left out.
func (p *printed) cut(limit int) (string, bool) {
	if len(p.text) <= limit {
		return string(p.text), false
	}
	return headAndTail(string(p.text), limit, p.whole, "the result has more"), true
}

// readSoFar reads the events of a running job until no more come for a moment. What cannot be read is left out: the job's state is the
// answer, and its result has all.
func (c *call) readSoFar(jobID string) *soFar {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	timer := time.AfterFunc(readQuiet, cancel)
	defer timer.Stop()
	begun, got := time.Now(), &soFar{}
	for event, err := range c.farm.Events(ctx, jobID) {
		leave := func() {}
		if err == nil { // they may be many thousands
			leave, err = budget.Core(ctx, len(event.Data))
		}
		if err != nil {
			return got
		}
		ended := got.take(event, c.Limits.TextBytes)
		if leave(); ended {
			return got
		}
		if left := readWait - time.Since(begun); left > 0 {
			timer.Reset(min(left, readQuiet))
		}
	}
	return got
}

// take adds an event and reports whether it is the last one.
func (s *soFar) take(e wire.Event, limit int) bool {
	switch e.Name {
	case "stdout", "stderr":
		var data wire.TextData
		if json.Unmarshal(e.Data, &data) != nil {
			return false
		}
		if s.clearing {
			*s = soFar{}
		}
		if e.Name == "stdout" {
			s.stdout.add(data.Text, limit)
		} else {
			s.stderr.add(data.Text, limit)
		}
	case "clear":
		s.clearing = true
	case "state":
		var data wire.StateData
		return json.Unmarshal(e.Data, &data) == nil && (&wire.Job{State: data.State}).Final()
	}
	return false
}

// running describes a job of code or commands that is not final, with what it has printed.
func (c *call) running(j *wire.Job, structured map[string]any) *answer {
	var b strings.Builder
	b.WriteString(unfinished(j))
	if j.State == string(farm.JobRunning) {
		got := c.readSoFar(j.ID)
		stdout, cutOut := got.stdout.cut(c.Limits.TextBytes)
		stderr, cutErr := got.stderr.cut(c.Limits.TextBytes)
		structured["stdout"], structured["stderr"] = stdout, stderr
		structured["truncated"] = map[string]any{"stdout": cutOut, "stderr": cutErr}
		b.WriteString("\n")
		writeStream(&b, "stdout so far", stdout)
		writeStream(&b, "stderr so far", stderr)
	}
	return &answer{text: b.String(), structured: structured}
}
