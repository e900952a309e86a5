package notebook

import (
	"context"
	"time"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// codeSeconds is how long code may run at most, where the farm lets it. The original has no such limit, and cuts off what is
	// silent for ten seconds.
	codeSeconds = 3600
	// closeWait bounds the wait for the end of a sandbox, which goes on without the caller.
	closeWait = 30 * time.Second
)

// Service is the surface for one caller.
type Service struct {
	call    *toolset.Call
	farm    toolset.Farm
	largest int64 // displayed value that stands in an answer
}

// NewService gives the surface as a caller sees it.
func NewService(c *toolset.Call) *Service { return &Service{call: c, farm: c.Farm, largest: richBytes} }

// finish starts a job and waits for its end, as long as the caller stays.
func (n *Service) finish(ctx context.Context, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	return n.call.Finish(ctx, begin) //nolint:wrapcheck // an error of the farm
}

// Created is the answer to a create.
type Created struct {
	SandboxID string `json:"sandbox_id"`
}

// Create makes a sandbox and waits until it is ready. It lives as long as the farm gives it, a day where nothing else is
// set, used or not.
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

// Close ends a sandbox with all that runs in it.
func (n *Service) Close(ctx context.Context, id string) (Closed, error) {
	if err := n.open(ctx, id); err != nil {
		return Closed{}, err
	}
	if _, err := n.farm.CloseSandbox(ctx, id, closeWait); err != nil {
		return Closed{}, n.gone(ctx, id, err)
	}
	return Closed{Status: "success", Message: "Sandbox closed"}, nil
}

// Listed is what the list says of a sandbox.
type Listed struct {
	CreatedAt float64 `json:"created_at"` // seconds since 1970
}

// List gives the sandboxes that take work, by their ids.
func (n *Service) List(ctx context.Context) (map[string]Listed, error) {
	boxes, err := n.farm.Sandboxes(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // an error of the farm
	}
	found := map[string]Listed{}
	for _, box := range boxes {
		if farm.SandboxState(box.State).Accepts() {
			found[box.ID] = Listed{CreatedAt: float64(box.CreatedAt.UnixMicro()) / 1e6}
		}
	}
	return found, nil
}

// ended is nil for a job that did what it was to do.
func ended(job *wire.Job) error {
	switch {
	case job.State == string(farm.JobCompleted):
		return nil
	case !job.Final():
		return farm.Errorf(farm.CodeUnavailable, "The server stops. The job %s goes on: ask for it under %s.", job.ID, job.Links.Self)
	case job.Error != nil && job.Error.Code != "":
		return farm.Errorf(farm.Code(job.Error.Code), "%s", job.Error.Message)
	default:
		return farm.Errorf(farm.CodeUnavailable, "The job %s ended as %s.", job.ID, job.State)
	}
}
