package relay

import (
	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Agent is what a sandbox's agent does for callers over the live path.
type Agent struct {
	client.Live
	way *sandboxPath
}

// Output is an answer with output of a process.
type Output = client.ProcessOutput

// Agent is the agent of a sandbox.
func (p *Path) Agent(box *farm.Sandbox) Agent {
	way := p.way(box)
	return Agent{client.NewLive(way), way}
}

// FileEvents is an answer with changes of files.
type FileEvents = agent.FileEvents

// Kinds of changes.
const (
	FileCreated = agent.FileCreated
	FileChanged = agent.FileChanged
	FileRemoved = agent.FileRemoved
	FileDropped = agent.FileDropped
	FileRenamed = agent.FileRenamed
)

// Piece is a piece of content.
type Piece = client.Piece

// PieceOf is a piece of bytes that are known.
func PieceOf(b []byte) *Piece { return client.PieceOf(b) }

// FileEvent is one change.
type FileEvent = agent.FileEvent

// FileKind says what happened to a file.
type FileKind = agent.FileKind

// Message is what a kernel says to notebooks beside its executions.
type Message = agent.Message

// Question is what a notebook asks of a kernel.
type Question = agent.NotebookQuestion

// Input is the answer of a notebook to a question for input.
type Input = agent.NotebookInput
