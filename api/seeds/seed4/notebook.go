package seed4

import (
	"context"
	"time"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// lifeSeconds is the life of a sandbox, which the seed counts from its creation.
	lifeSeconds = 24 * 3600
	// codeSeconds is how long code may run. The seed has no such limit, and cuts off what is silent for ten seconds.
	codeSeconds = 3600
	// patience is how long an answer is held: as long as the caller stays. The job's own limits end the wait.
	patience = 48 * time.Hour
	// closeWait bounds the wait for the end of a sandbox, which goes on without the caller.
	closeWait = 30 * time.Second
	// pageSize and maxListed bound the list of sandboxes.
	pageSize  = 200
	maxListed = 10_000
)

// Notebook is the surface for one tenant.
type Notebook struct {
	service *service.Service
	tenant  string
}

// New gives the surface as a tenant sees it.
func New(s *service.Service, tenant string) *Notebook { return &Notebook{service: s, tenant: tenant} }

func (n *Notebook) call(wait time.Duration) service.Call {
	return service.Call{Tenant: n.tenant, Wait: wait}
}

// Created is the answer to a create.
type Created struct {
	SandboxID string `json:"sandbox_id"`
}

// Create makes a sandbox and waits until it is ready. It lives for a day, used or not.
func (n *Notebook) Create(ctx context.Context) (Created, error) {
	life, idle := min(lifeSeconds, n.service.Bounds().TTLMaxSeconds), 0
	out, err := n.service.CreateSandbox(ctx, n.call(patience), wire.CreateRequest{TTLSeconds: &life, IdleSeconds: &idle})
	if err != nil {
		return Created{}, err //nolint:wrapcheck // an error of the domain
	}
	if err := ended(&out.Job); err != nil {
		return Created{}, err
	}
	return Created{SandboxID: out.Job.SandboxID}, nil
}

// Closed is the answer to a close.
type Closed struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// Close ends a sandbox with all that runs in it.
func (n *Notebook) Close(ctx context.Context, id string) (Closed, error) {
	if err := n.open(ctx, id); err != nil {
		return Closed{}, err
	}
	if _, err := n.service.CloseSandbox(ctx, n.call(closeWait), id); err != nil {
		return Closed{}, n.gone(ctx, id, err)
	}
	return Closed{Status: "success", Message: "Sandbox closed"}, nil
}

// Listed is what the list says of a sandbox.
type Listed struct {
	CreatedAt float64 `json:"created_at"` // seconds since 1970
}

// List gives the sandboxes that take work, by their ids.
func (n *Notebook) List(ctx context.Context) (map[string]Listed, error) {
	q := service.SandboxQuery{Page: store.Page{Limit: pageSize}}
	for _, state := range farm.SandboxStates() {
		if state.Accepts() {
			q.States = append(q.States, string(state))
		}
	}
	found := map[string]Listed{}
	for {
		page, err := n.service.Sandboxes(ctx, n.tenant, q)
		if err != nil {
			return nil, err //nolint:wrapcheck // an error of the domain
		}
		for _, box := range page.Items {
			found[box.ID] = Listed{CreatedAt: float64(box.CreatedAt.UnixMicro()) / 1e6}
		}
		if page.NextCursor == "" || len(found) >= maxListed {
			return found, nil
		}
		q.Page.Cursor = string(page.NextCursor)
	}
}

// ended is nil for a job that did what it was to do. The wait for it ends early only when the server stops.
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
