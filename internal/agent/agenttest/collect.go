package agenttest

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// ackEvery is how many bytes are read between two acknowledgements.
const ackEvery = 1 << 20

// collector assembles frames.
type collector struct {
	ran       Ran
	out, errs bytes.Buffer
	unacked   int
}

func (c *collector) add(f agent.Frame) error {
	c.unacked += len(f.Payload)
	c.ran.Frames = append(c.ran.Frames, agent.Frame{Seq: f.Seq, Type: f.Type})
	var err error
	switch f.Type {
	case agent.FrameStdout:
		c.out.Write(f.Payload)
	case agent.FrameStderr:
		c.errs.Write(f.Payload)
	case agent.FrameDisplay:
		var d agent.Display
		err = json.Unmarshal(f.Payload, &d)
		c.ran.Displays = append(c.ran.Displays, d)
	case agent.FrameDropped:
		var d agent.Dropped
		err = json.Unmarshal(f.Payload, &d)
		c.ran.Dropped = append(c.ran.Dropped, d)
	case agent.FrameCommandStart:
	case agent.FrameCommandEnd:
		var m agent.CommandMark
		err = json.Unmarshal(f.Payload, &m)
		c.ran.Commands = append(c.ran.Commands, m)
	case agent.FrameFinal:
		err = json.Unmarshal(f.Payload, &c.ran.Outcome)
	}
	if err != nil {
		return fmt.Errorf("decode frame %d: %w", f.Seq, err)
	}
	return nil
}

// due reports whether it is time to acknowledge.
func (c *collector) due() bool {
	if c.unacked < ackEvery {
		return false
	}
	c.unacked = 0
	return true
}

func (c *collector) done() Ran {
	c.ran.Stdout, c.ran.Stderr = c.out.String(), c.errs.String()
	return c.ran
}

// NewID returns a new id for an execution.
func NewID() string { return farm.NewID(farm.JobPrefix) }

// Code is an execution of Python code in the default context.
func Code(code string) agent.Spec { return agent.Spec{Kind: farm.KindExecute, Code: code} }

// Commands is an execution of commands.
func Commands(commands ...string) agent.Spec {
	return agent.Spec{Kind: farm.KindCommand, Commands: commands}
}
