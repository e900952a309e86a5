package service

import (
	"context"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/store"
)

// spec checks the request for a new sandbox and fills in the defaults.
func (s *Service) spec(ctx context.Context, p *problems, tenant string, r wire.CreateRequest) (farm.SandboxSpec, secret.Bundle) {
	out := farm.SandboxSpec{Name: r.Name, Image: orElse(r.Image, "python"), Env: r.Env, Labels: r.Labels}
	p.check("/name", s.checkName(r.Name))
	s.checkEnv(p, r.Env)
	s.checkLabels(p, r.Labels)
	out.GPU = gpu(p, r.GPU)
	checkGPUEnv(p, out.GPU, r)
	out.Network, out.AllowHosts = s.network(ctx, p, tenant, r.Network, r.AllowHosts)
	var sealed secret.Bundle
	out.Secrets, sealed = s.secrets(p, r, out)
	if sealed.Authority != nil {
		out.Authority = sealed.Authority.Certificate
	}
	out.Runtime = s.runtime(ctx, p, tenant, r.Runtime)
	out.Resources = s.resources(p, r.Resources)
	out.TTLSeconds, out.IdleSeconds = s.ttl(p, r.TTLSeconds), s.idle(p, r.IdleSeconds)
	out.OnIdle = s.onIdle(ctx, p, r.OnIdle, out)
	_, _, err := s.image(ctx, out.Image)
	p.check("/image", err)
	if !p.of("/resources", "/runtime") {
		p.check("/resources", s.checkCapacity(ctx, out.Resources, out.Runtime))
	}
	if !p.of("/resources", "/gpu", "/image", "/runtime") {
		p.check("/gpu", s.checkGPUCapacity(ctx, &out))
	}
	return out, sealed
}

// newSandbox makes the record of a new sandbox.
func (s *Service) newSandbox(tenant string, spec farm.SandboxSpec) *farm.Sandbox {
	now := s.Now().UTC()
	return &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: tenant, State: farm.SandboxQueued, Spec: spec,
		CreatedAt: now, LastUsedAt: now, ExpiresAt: now.Add(time.Duration(spec.TTLSeconds) * time.Second),
	}
}

// CreateSandbox creates a sandbox.
func (s *Service) CreateSandbox(ctx context.Context, c Call, r wire.CreateRequest) (Outcome, error) {
	idem, err := c.idempotency()
	if err != nil {
		return Outcome{}, err
	}
	p := c.problems()
	spec, secrets := s.spec(ctx, p, c.Tenant, r)
	install, names := s.wanted(p, r.Packages)
	s.checkCallback(ctx, p, r.CallbackURL)
	if err := p.err(); err != nil {
		return Outcome{}, err
	}
	box := s.newSandbox(c.Tenant, spec)
	sealed, err := s.seal(box, secrets)
	if err != nil {
		return Outcome{}, err
	}
	job := s.record(c, farm.KindCreate, box.ID)
	job.Queue, job.CallbackURL = spec.GPU.Queue(), r.CallbackURL
	return s.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{Sandbox: &spec, Install: install}, Sandbox: box, Secrets: sealed, Packages: names, Idempotency: idem})
}

// sandbox reads the record of a sandbox. An invalid id is not_found.
func (s *Service) sandbox(ctx context.Context, tenant, id string) (*farm.Sandbox, error) {
	if !farm.ValidID(farm.SandboxPrefix, id) {
		return nil, noSandbox(id)
	}
	budget.LeaveCore(ctx)
	return s.Store.Sandbox(ctx, farm.Ref{Tenant: tenant, ID: id})
}

func noSandbox(id string) error { return noSuch("There is no sandbox", id) }

// Sandbox reads a sandbox. Reading does not count as use.
func (s *Service) Sandbox(ctx context.Context, tenant, id string) (wire.Sandbox, error) {
	box, err := s.sandbox(ctx, tenant, id)
	if err != nil {
		return wire.Sandbox{}, err
	}
	return sandboxOf(box), nil
}

// OpenRefs lists the open sandboxes of all tenants. It is for what has to find the tenant of a caller, and no answer to one.
func (s *Service) OpenRefs(ctx context.Context) ([]farm.Ref, error) { return s.Store.OpenRefs(ctx) }

// SandboxQuery filters sandboxes; zero fields match all.
type SandboxQuery struct {
	Name    string
	States  []string
	Labels  map[string]string
	Created store.TimeRange
	Page    store.Page
}

// Sandboxes lists sandboxes, newest first.
func (s *Service) Sandboxes(ctx context.Context, tenant string, q SandboxQuery) (wire.List[wire.Sandbox], error) {
	f := store.SandboxFilter{Name: q.Name, Labels: q.Labels, Created: q.Created}
	for _, state := range q.States {
		if !slices.Contains(farm.SandboxStates(), farm.SandboxState(state)) {
			return wire.List[wire.Sandbox]{}, farm.Invalidf("state %q is not known; it is one of %s", farm.Shorten(state), listed(farm.SandboxStates()))
		}
		f.States = append(f.States, farm.SandboxState(state))
	}
	boxes, next, err := s.Store.Sandboxes(ctx, tenant, f, q.Page)
	if err != nil {
		return wire.List[wire.Sandbox]{}, err
	}
	list := wire.List[wire.Sandbox]{Items: make([]wire.Sandbox, len(boxes)), NextCursor: wire.Cursor(next)}
	for i, box := range boxes {
		list.Items[i] = sandboxOf(box)
	}
	return list, nil
}

// UpdateSandbox changes a sandbox's name, labels, time to live, hosts or values of secrets, at once and without a job. Of the call it uses only the
// tenant and the problems of the body.
func (s *Service) UpdateSandbox(ctx context.Context, c Call, id string, r wire.UpdateRequest) (wire.Sandbox, error) {
	patch := store.SandboxPatch{Name: r.Name, TTLSeconds: r.TTLSeconds, IdleSeconds: r.IdleSeconds, Labels: r.Labels}
	p := c.problems()
	if r.Name != nil {
		p.check("/name", s.checkName(*r.Name))
	}
	if r.Labels != nil {
		s.checkLabels(p, *r.Labels)
	}
	s.ttl(p, r.TTLSeconds)
	s.idle(p, r.IdleSeconds)
	if r.AllowHosts != nil {
		if err := s.patchHosts(ctx, p, c.Tenant, id, *r.AllowHosts, &patch); err != nil {
			return wire.Sandbox{}, err
		}
	}
	if err := s.checkNewSecrets(ctx, p, c.Tenant, id, r.Secrets); err != nil {
		return wire.Sandbox{}, err
	}
	if err := p.err(); err != nil {
		return wire.Sandbox{}, err
	}
	if !farm.ValidID(farm.SandboxPrefix, id) {
		return wire.Sandbox{}, noSandbox(id)
	}
	box, err := s.patch(ctx, farm.Ref{Tenant: c.Tenant, ID: id}, patch, r.Secrets)
	if err != nil {
		return wire.Sandbox{}, err
	}
	return sandboxOf(box), nil
}

// patchHosts checks new hosts of a sandbox, whose network never changes.
func (s *Service) patchHosts(ctx context.Context, p *problems, tenant, id string, hosts []string, patch *store.SandboxPatch) error {
	box, err := s.sandbox(ctx, tenant, id)
	if err != nil {
		return err
	}
	if box.Spec.Network != farm.NetworkAllowlist {
		p.addf("/allow_hosts", "allow_hosts needs the network mode allowlist, and this sandbox has %s: create another one", box.Spec.Network)
		return nil
	}
	rules := s.hosts(ctx, p, tenant, hosts)
	patch.AllowHosts = &rules
	return nil
}

// CloseSandbox closes a sandbox and cancels its running and queued jobs. Closing it again returns the job of the first close.
func (s *Service) CloseSandbox(ctx context.Context, c Call, id string) (Outcome, error) {
	if !farm.ValidID(farm.SandboxPrefix, id) {
		return Outcome{}, noSandbox(id)
	}
	job := s.record(c, farm.KindClose, id)
	job.Inline = true
	return s.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{Close: &farm.CloseRequest{Reason: "closed by the caller"}}})
}

// HibernateOrResume hibernates a sandbox after the jobs before (farm.KindHibernate) or resumes it (farm.KindResume). Both succeed if there is nothing to do.
func (s *Service) HibernateOrResume(ctx context.Context, c Call, kind farm.JobKind, id string, r wire.HibernateRequest) (Outcome, error) {
	idem, err := c.idempotency()
	if err != nil {
		return Outcome{}, err
	}
	p := c.problems()
	s.checkCallback(ctx, p, r.CallbackURL)
	if err := p.err(); err != nil {
		return Outcome{}, err
	}
	box, err := s.sandbox(ctx, c.Tenant, id)
	if err != nil {
		return Outcome{}, err
	}
	if box.State.Accepts() && box.State != farm.SandboxHibernated {
		if err := s.checkHibernates(ctx, box); err != nil {
			return Outcome{}, err
		}
	}
	job := s.record(c, kind, id)
	job.CallbackURL = r.CallbackURL
	return s.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{}, Idempotency: idem})
}

// checkHibernates refuses to hibernate a sandbox whose node cannot. One that has no node yet may get one that can; its worker checks again.
func (s *Service) checkHibernates(ctx context.Context, box *farm.Sandbox) error {
	if box.Spec.GPU != nil {
		return farm.CannotHibernate(box)
	}
	for _, fresh := range []bool{false, true} {
		nodes, err := s.readNodes(ctx, fresh)
		if err != nil {
			return err
		}
		for node, runtimes := range nodes.hibernates {
			if (box.Node == "" || box.Node == node) && (box.Runtime == "" && len(runtimes) > 0 || slices.Contains(runtimes, box.Runtime)) {
				return nil
			}
		}
	}
	return farm.CannotHibernate(box)
}

// onIdleClose is the public name of farm.OnIdleClose.
const onIdleClose = "close"

// onIdle reads on_idle. It refuses hibernate where no node could do it with the sandbox.
func (s *Service) onIdle(ctx context.Context, p *problems, given *string, spec farm.SandboxSpec) farm.OnIdle {
	switch value := orElse(given, onIdleClose); value {
	case onIdleClose:
		return farm.OnIdleClose
	case string(farm.OnIdleHibernate):
	default:
		p.addf("/on_idle", "on_idle %q is neither %q nor %q", farm.Shorten(value), onIdleClose, farm.OnIdleHibernate)
		return farm.OnIdleClose
	}
	if spec.IdleSeconds == 0 {
		p.addf("/on_idle", "on_idle is hibernate, but idle_seconds is 0: the sandbox is never idle")
	}
	if !p.of("/runtime", "/gpu") {
		if err := s.checkHibernates(ctx, &farm.Sandbox{Runtime: spec.Runtime, Spec: spec}); err != nil {
			p.addf("/on_idle", "on_idle is hibernate, which needs a node whose engine makes checkpoints (Docker, not Kubernetes), gVisor (runtime runsc) and no GPU; see hibernates of GET /v1/workers")
		}
	}
	return farm.OnIdleHibernate
}
