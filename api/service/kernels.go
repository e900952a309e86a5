package service

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/store"
)

// CodeContexts lists the contexts of a sandbox in which code runs, the oldest first.
func (s *Service) CodeContexts(ctx context.Context, tenant, sandboxID string) ([]farm.CodeContext, error) {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return nil, err
	}
	return a.Contexts(ctx)
}

// CreateContext makes a context in which code runs, and returns it with its directory. Creating one again changes nothing.
func (s *Service) CreateContext(ctx context.Context, tenant, sandboxID string, c farm.CodeContext) (farm.CodeContext, error) {
	if err := checkContext(c.Name); err != nil {
		return c, err
	}
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return c, err
	}
	return a.CreateContext(ctx, c)
}

// RemoveContext ends a context and the code that runs in it.
func (s *Service) RemoveContext(ctx context.Context, tenant, sandboxID, name, language string) error {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return err
	}
	return a.RemoveContext(ctx, name, language)
}

// cellPage is how many of the newest executions of a sandbox are looked through for cells, and cellReads how many pages are read for them at most: a
// sandbox may have run any number of other jobs since.
const cellPage, cellReads = 50, 4

// Cell is a job that a client of a notebook asked for.
type Cell struct {
	farm.Cell
	Job  wire.Job
	Code string // its beginning, if Cut
	Cut  bool
}

// Cells lists the newest cells of one session of a notebook's client, oldest first.
func (s *Service) Cells(ctx context.Context, tenant, sandboxID, session string) ([]Cell, error) {
	var jobs []*farm.Job
	cursor := ""
	for n := 0; n < cellReads && len(jobs) < cellPage; n++ { // a page of large results is short
		page, next, err := s.Store.Jobs(ctx, tenant, store.JobFilter{SandboxID: sandboxID, Kinds: []farm.JobKind{farm.KindExecute}}, store.Page{Limit: cellPage - len(jobs), Cursor: cursor})
		if farm.CodeOf(err) == farm.CodeExhausted && len(jobs) > 0 {
			break // there is no memory for more
		}
		if err != nil {
			return nil, err
		}
		for _, job := range page {
			job.Result = nil
		}
		jobs = append(jobs, page...)
		if cursor = next; next == "" {
			break
		}
	}
	var out []Cell
	for i := len(jobs) - 1; i >= 0; i-- {
		if c := jobs[i].Cell(); c != nil && c.Session == session {
			out = append(out, Cell{Cell: *c, Job: s.job(ctx, jobs[i]), Code: jobs[i].Redacted.Execute.Code, Cut: jobs[i].Truncated})
		}
	}
	return out, nil
}

// AbortCells cancels the cells that wait in a sandbox.
func (s *Service) AbortCells(ctx context.Context, tenant, sandboxID string) error {
	cells, err := s.Store.QueuedCells(ctx, farm.Ref{Tenant: tenant, ID: sandboxID}, "")
	for _, ref := range cells { // the newest first, so none becomes the next to run
		job, cause := s.Submitter.Cancel(ctx, ref)
		if cause == nil {
			s.Canceled(ctx, job)
		}
		err = errors.Join(err, cause)
	}
	return err
}

// AskKernel asks the kernel of a context what a notebook asks: its content and the answer are those of Jupyter's messages. The answer, of up to
// a MiB, is charged to the request of ctx.
func (s *Service) AskKernel(ctx context.Context, tenant, sandboxID, kernel string, q relay.Question) (json.RawMessage, error) {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return nil, err
	}
	answer, err := a.Ask(ctx, kernel, q)
	if err == nil {
		err = budget.Charge(ctx, int64(len(answer))*budget.BodyWeight)
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// KernelInput gives the code of a context the line of input that it waits for.
func (s *Service) KernelInput(ctx context.Context, tenant, sandboxID, kernel string, in relay.Input) error {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return err
	}
	return a.Input(ctx, kernel, in)
}

// KernelMessages reads what the kernel of a context says to notebooks beside its executions, after the message with a number. It waits for some.
// What it reads is charged to the request of ctx.
func (s *Service) KernelMessages(ctx context.Context, tenant, sandboxID, kernel string, after uint64, wait time.Duration) ([]relay.Message, error) {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return nil, err
	}
	return a.Messages(ctx, kernel, after, wait, func(bytes int) error { return budget.Charge(ctx, int64(bytes)*budget.BodyWeight) })
}
