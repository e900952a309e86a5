package execution

import (
	"encoding/json"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxOutput is the limit of each of stdout and stderr of a job in bytes.
func maxOutput(l farm.Limits) int64 { return int64(l.MaxOutputMB) << 20 }

// cut shortens a frame of output to what the limit leaves of its stream, and counts the rest as dropped. The agent keeps to the limit
// itself, unless it is older, or began under a higher limit, or code has taken it over.
func (c *collector) cut(f agent.Frame) agent.Frame {
	s := c.sinkOf(f)
	if s == nil {
		return f
	}
	left := maxOutput(c.limits)
	for _, o := range c.outputs {
		left -= o.sink(f.Type).total
	}
	if left = max(left, 0); int64(len(f.Payload)) > left {
		s.dropped += int64(len(f.Payload)) - left
		f.Payload = f.Payload[:left]
	}
	return f
}

// sink returns the stream of a frame; nil if the frame carries no output.
func (o *output) sink(kind agent.FrameType) *sink {
	switch kind {
	case agent.FrameStdout:
		return o.stdout
	case agent.FrameStderr:
		return o.stderr
	default:
		return nil
	}
}

// drop counts what the agent has dropped of the current streams.
func (c *collector) drop(payload []byte) error {
	var d agent.Dropped
	if err := json.Unmarshal(payload, &d); err != nil {
		return fmt.Errorf("%w: read number of dropped bytes: %w", ErrProtocol, err)
	}
	if d.Stdout < 0 || d.Stderr < 0 {
		return fmt.Errorf("%w: %d and %d bytes were dropped", ErrProtocol, d.Stdout, d.Stderr)
	}
	if len(c.outputs) > 0 {
		last := c.outputs[len(c.outputs)-1]
		last.stdout.dropped += d.Stdout
		last.stderr.dropped += d.Stderr
	}
	return nil
}

// truncated says of which streams the record lacks a part.
func (o *output) truncated() farm.Truncated {
	return farm.Truncated{Stdout: o.stdout.truncated(), Stderr: o.stderr.truncated()}
}

// dropped says how much of each stream is kept nowhere.
func (o *output) dropped() farm.Dropped {
	return farm.Dropped{Stdout: o.stdout.dropped, Stderr: o.stderr.dropped}
}

// noteDropped tells the caller how much was dropped of all outputs together.
func (c *collector) noteDropped() {
	var all farm.Dropped
	for _, o := range c.outputs {
		all.Stdout += o.stdout.dropped
		all.Stderr += o.stderr.dropped
	}
	c.noteDroppedOf("stdout", all.Stdout)
	c.noteDroppedOf("stderr", all.Stderr)
}

func (c *collector) noteDroppedOf(name string, bytes int64) {
	if bytes > 0 {
		c.note("%d bytes of %s were dropped from its middle: a job keeps %d MiB of each stream (limits.max_output_mb). Write long output to a file.", bytes, name, c.limits.MaxOutputMB)
	}
}

// outputLimitSentence says why code or commands were stopped; what begins the sentence.
func outputLimitSentence(what string, l farm.Limits) string {
	return fmt.Sprintf("%s stopped because stdout or stderr exceeded %d MiB (limits.max_output_mb) and on_output_limit is \"stop\". "+
		"Print less, write long output to a file, or send on_output_limit \"continue\".", what, l.MaxOutputMB)
}
