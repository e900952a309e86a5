package mcp

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// soFar is what a running job has printed.
type soFar struct {
	stdout, stderr printed
	clearing       bool // the next output replaces what is there
}

// printed is one stream, without its middle once it is several times as long as an answer takes.
type printed struct {
	text  string
	whole int64 // bytes
}

func (p *printed) add(s string, most int) {
	p.whole += int64(len(s))
	if p.text += s; len(p.text) > 4*most {
		p.text = p.text[:most/2] + p.text[len(p.text)-most:]
	}
}

// cut is the stream as an answer shows it, and whether something is left out.
func (p *printed) cut(most int) (string, bool) {
	if len(p.text) <= most {
		return p.text, false
	}
	return headAndTail(p.text, most, p.whole, "the result has more"), true
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
		if err != nil || got.take(event, c.Limits.TextBytes) {
			return got
		}
		if left := readWait - time.Since(begun); left > 0 {
			timer.Reset(min(left, readQuiet))
		}
	}
	return got
}

// take adds an event and reports whether it is the last one.
func (s *soFar) take(e wire.Event, most int) bool {
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
			s.stdout.add(data.Text, most)
		} else {
			s.stderr.add(data.Text, most)
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
