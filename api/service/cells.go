package service

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/live"
	"github.com/sandfarm/sandfarm/internal/store"
)

// cellPage is how many of the newest jobs of a sandbox are looked through for cells.
const cellPage = 50

// Cell is a job that a client of a notebook asked for.
type Cell struct {
	Job     wire.Job
	Message string // id of the client's message
}

// Cells lists the newest cells of one session of a notebook's client, oldest first.
func (s *Service) Cells(ctx context.Context, tenant, sandboxID, session string) ([]Cell, error) {
	jobs, _, err := s.Store.Jobs(ctx, tenant, store.JobFilter{SandboxID: sandboxID, Kinds: []farm.JobKind{farm.KindExecute}}, store.Page{Limit: cellPage})
	if err != nil {
		return nil, err
	}
	var out []Cell
	for i := len(jobs) - 1; i >= 0; i-- {
		if r := jobs[i].Shown; r != nil && r.Execute != nil && r.Execute.Cell != nil && r.Execute.Cell.Session == session {
			out = append(out, Cell{Job: s.job(ctx, jobs[i]), Message: r.Execute.Cell.Message})
		}
	}
	return out, nil
}

// AskKernel asks the kernel of a context what a notebook asks: its content and the answer are those of Jupyter's messages.
func (s *Service) AskKernel(ctx context.Context, tenant, sandboxID, kernel string, q live.Question) (json.RawMessage, error) {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return nil, err
	}
	return a.Ask(ctx, kernel, q)
}

// KernelInput gives the code of a context the line of input that it waits for.
func (s *Service) KernelInput(ctx context.Context, tenant, sandboxID, kernel string, in live.Input) error {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return err
	}
	return a.Input(ctx, kernel, in)
}

// KernelMessages reads what the kernel of a context says to notebooks beside its executions, after the message with a number. It waits for some.
// What it reads is charged to the request of ctx.
func (s *Service) KernelMessages(ctx context.Context, tenant, sandboxID, kernel string, after uint64, wait time.Duration) ([]live.Message, error) {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return nil, err
	}
	return a.Messages(ctx, kernel, after, wait, func(bytes int) error { return budget.Charge(ctx, int64(bytes)*budget.BodyWeight) })
}
