package notebook

import (
	"context"
	"time"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// codeSeconds is the timeout of code, if the farm allows that much. The original has no timeout, but stops code that prints
	// nothing for ten seconds.
	codeSeconds = 3600
	// closeWait limits the wait for a close, which continues without the caller.
	closeWait = 30 * time.Second
)

// Service implements the routes for one caller.
type Service struct {
	call    *toolset.Call
	farm    toolset.Farm
	largest int64 // displayed value that an answer contains
}

// NewService makes the service of a caller.
func NewService(c *toolset.Call) *Service { return &Service{call: c, farm: c.Farm, largest: richBytes} }

// finish starts a job and waits for its end, as long as the caller is connected.
func (n *Service) finish(ctx context.Context, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	return n.call.Finish(ctx, begin)
}

// Created is the answer to a create.
type Created struct {
	SandboxID string `json:"sandbox_id"`
}

// Create creates a sandbox and waits until it is ready. It has no idle limit and lives for the farm's default, a day.
func (n *Service) Create(ctx context.Context) (Created, error) {
	idle := 0
	job, err := n.finish(ctx, func(wait time.Duration) (wire.Job, error) {
		made, err := n.farm.CreateSandbox(ctx, wire.CreateRequest{IdleSeconds: &idle}, wait)
		return made.Job, err
	})
	if err == nil {
		err = ended(&job)
	}
	return Created{SandboxID: job.SandboxID}, err
}

// Closed is the answer to a close.
type Closed struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// Close closes a sandbox and stops everything in it.
func (n *Service) Close(ctx context.Context, id string) (Closed, error) {
	if err := n.open(ctx, id); err != nil {
		return Closed{}, err
	}
	if _, err := n.farm.CloseSandbox(ctx, id, closeWait); err != nil {
		return Closed{}, n.recheck(ctx, id, err)
	}
	return Closed{Status: "success", Message: "Sandbox closed"}, nil
}

// Listed is one entry of the list.
type Listed struct {
	CreatedAt float64 `json:"created_at"` // seconds since 1970
}

// List returns the sandboxes that accept work, by id.
func (n *Service) List(ctx context.Context) (map[string]Listed, error) {
	boxes, err := n.farm.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]Listed{}
	for _, box := range boxes {
		if farm.SandboxState(box.State).Accepts() {
			found[box.ID] = Listed{CreatedAt: float64(box.CreatedAt.UnixMicro()) / 1e6}
		}
	}
	return found, nil
}

// ended returns an error for a job that is not completed.
func ended(job *wire.Job) error {
	switch {
	case job.State == string(farm.JobCompleted):
		return nil
	case !job.Final():
		return farm.Errorf(farm.CodeUnavailable, "The server is stopping. The job %s continues: read it at %s.", job.ID, job.Links.Self)
	case job.Error != nil && job.Error.Code != "":
		return farm.Errorf(farm.Code(job.Error.Code), "%s", job.Error.Message)
	default:
		return farm.Errorf(farm.CodeUnavailable, "The job %s ended as %s.", job.ID, job.State)
	}
}
