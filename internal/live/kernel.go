package live

import "github.com/sandfarm/sandfarm/internal/agent"

// Message is what a kernel says to notebooks beside its executions.
type Message = agent.Message

// Question is what a notebook asks of a kernel.
type Question = agent.NotebookQuestion

// Input is the answer of a notebook to a question for input.
type Input = agent.NotebookInput
