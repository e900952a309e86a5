package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// endBatch is how many sandboxes EndNode ends between two questions whether the node is still gone.
const endBatch = 50

// NodeEnd says which node is gone, and why.
type NodeEnd struct {
	Node   string
	Reason string // what happened, for the callers of its jobs: "its node has had no worker for 5m0s"

	// Gone is asked before each batch of sandboxes; false ends the pass. Nil: the node is gone.
	Gone func(context.Context) (bool, error)
	// WorkerLives says that only the engine is gone: the node's workers move what they start, and release what the node holds.
	WorkerLives bool
}

// NodeEnded is what a pass of EndNode did.
type NodeEnded struct {
	Lost     []farm.Ref // sandboxes that are lost now
	Closed   int        // sandboxes that were closing, and are closed now
	Requeued int        // creations that continue on another node
	Done     bool       // nothing of the node is left
}

// EndNode ends everything that is recorded on a node: creations are requeued for other nodes, other sandboxes are lost with their jobs, those
// that were closing are closed. Then it releases what the node holds: reservations, GPU leases, members of the pool, and its queue. Every step
// looks at the records and may be repeated, so a pass that is stopped at any point, or fails in part, is continued by the next one.
func (d *Dispatcher) EndNode(ctx context.Context, e NodeEnd) (NodeEnded, error) {
	var out NodeEnded
	f, err := d.readFleet(ctx)
	if err != nil || f == nil {
		return out, err
	}
	inUse, err := d.store.NodesInUse(ctx)
	if err != nil {
		return out, err
	}
	var problems []error
	for _, tenant := range inUse[e.Node] {
		sandboxes, err := d.store.OpenIDsOnNode(ctx, tenant, e.Node)
		if err != nil {
			return out, errors.Join(append(problems, err)...)
		}
		for batch := range slices.Chunk(sandboxes, endBatch) {
			if gone, err := e.gone(ctx); err != nil || !gone {
				return out, errors.Join(append(problems, err)...)
			}
			for _, ref := range batch {
				if err := d.endOnNode(ctx, e, ref, f, &out); err != nil {
					problems = append(problems, fmt.Errorf("end sandbox %s of node %s: %w", ref.ID, e.Node, err))
				}
			}
		}
	}
	if e.WorkerLives || len(problems) > 0 {
		return out, errors.Join(problems...)
	}
	if gone, err := e.gone(ctx); err != nil || !gone {
		return out, err
	}
	if err := d.store.ReleaseNode(ctx, e.Node); err != nil {
		return out, err
	}
	if err := d.queue.RemoveQueue(ctx, farm.NodeQueue(e.Node)); err != nil {
		return out, err
	}
	out.Done = true
	return out, nil
}

func (e NodeEnd) gone(ctx context.Context) (bool, error) {
	if e.Gone == nil {
		return true, nil
	}
	return e.Gone(ctx)
}

// endOnNode ends one sandbox of a node.
func (d *Dispatcher) endOnNode(ctx context.Context, e NodeEnd, ref farm.Ref, f *fleet, out *NodeEnded) error {
	s, jobs, err := d.sandboxWithJobs(ctx, ref)
	if err != nil || s == nil || s.State.Final() || s.Node != e.Node {
		return err
	}
	if s.State == farm.SandboxQueued || s.State == farm.SandboxStarting {
		if i := slices.IndexFunc(jobs, creates); i >= 0 {
			if jobs[i].State == farm.JobRunning && f.alive(jobs[i].Worker) {
				return nil // its worker moves it
			}
			out.Requeued++
			return d.startElsewhere(ctx, &jobs[i])
		}
	}
	if s.State != farm.SandboxClosing && !d.now().Before(s.ExpiresAt) {
		_, err := d.store.MoveSandbox(ctx, store.Move{Ref: ref, To: farm.SandboxClosing, Reason: "Its time was up.", Expired: true})
		if err != nil && !errors.Is(err, store.ErrMove) {
			return err
		}
		if s, err = d.store.Sandbox(ctx, ref); err != nil {
			return err
		}
	}
	if s.State == farm.SandboxClosing {
		if e.WorkerLives {
			return nil // the reconciler closes it, with its container
		}
		out.Closed++
		return d.endClosing(ctx, s, jobs)
	}
	return d.lose(ctx, s, e.Reason, jobs, out)
}

// lose marks a sandbox as lost, and its jobs. A job that is left over by a crash in between is ended by Sweep, with the same sentence.
func (d *Dispatcher) lose(ctx context.Context, s *farm.Sandbox, reason string, jobs []store.Route, out *NodeEnded) error {
	_, err := d.store.MoveSandbox(ctx, store.Move{Ref: s.Ref(), To: farm.SandboxLost, Reason: reason, Generation: s.Generation})
	if errors.Is(err, store.ErrMove) || errors.Is(err, store.ErrFenced) {
		return nil // it has ended meanwhile, began anew elsewhere, or is closing: the next pass ends it
	}
	if err != nil {
		return err
	}
	d.log.WarnContext(ctx, "sandbox lost", "sandbox_id", s.ID, "tenant", s.Tenant, "node", s.Node, "reason", reason)
	out.Lost = append(out.Lost, s.Ref())
	var problems []error
	for _, r := range slices.Backward(jobs) { // the last of the FIFO first, so that none becomes the head
		problems = append(problems, d.endWithSandbox(ctx, &r, farm.SandboxLost, reason))
	}
	return errors.Join(problems...)
}

// endClosing closes a sandbox that no worker closes, with its jobs.
func (d *Dispatcher) endClosing(ctx context.Context, s *farm.Sandbox, jobs []store.Route) error {
	end := farm.SandboxClosed
	if s.Expired {
		end = farm.SandboxExpired
	}
	if _, err := d.store.MoveSandbox(ctx, store.Move{Ref: s.Ref(), To: end}); err != nil && !errors.Is(err, store.ErrMove) {
		return err
	}
	var problems []error
	for _, r := range slices.Backward(jobs) {
		problems = append(problems, d.endWithSandbox(ctx, &r, end, ""))
	}
	return errors.Join(problems...)
}

// CloseUnplaced closes the sandboxes that are closing, have no node, and no job that makes or closes them: it failed. It returns how many.
func (d *Dispatcher) CloseUnplaced(ctx context.Context, tenants []string) (n int, err error) {
	var problems []error
	for _, tenant := range tenants {
		sandboxes, err := d.store.OpenIDsOnNode(ctx, tenant, "")
		if err != nil {
			return n, errors.Join(append(problems, err)...)
		}
		for _, ref := range sandboxes {
			s, jobs, err := d.sandboxWithJobs(ctx, ref)
			if err == nil && s != nil && s.State == farm.SandboxClosing && s.Node == "" &&
				!slices.ContainsFunc(jobs, func(r store.Route) bool { return creates(r) || r.Kind == farm.KindClose }) {
				n++
				err = d.endClosing(ctx, s, jobs)
			}
			problems = append(problems, err)
		}
	}
	return n, errors.Join(problems...)
}

// endWithSandbox ends a job whose sandbox has ended in a state. Closing has done what it was to do; what ran, or waited for a lost sandbox, is
// lost; what waited for a closed one is canceled.
func (d *Dispatcher) endWithSandbox(ctx context.Context, r *store.Route, end farm.SandboxState, reason string) error {
	switch {
	case r.Kind == farm.KindClose:
		return d.Force(ctx, r.Ref, farm.JobCompleted, nil)
	case end == farm.SandboxLost && reason != "":
		when := "before the job started"
		if r.State == farm.JobRunning {
			when = "while the job ran, so it may have run in part"
		}
		return d.Force(ctx, r.Ref, farm.JobLost, &farm.JobError{
			Code:    farm.CodeUnavailable,
			Message: fmt.Sprintf("The sandbox was lost %s: %s. Create a new sandbox and send the job again.", when, reason),
		})
	case r.State == farm.JobRunning:
		return d.Force(ctx, r.Ref, farm.JobLost, &farm.JobError{
			Code: farm.CodeUnavailable, Message: "The worker and the sandbox of the job are gone. Create a new sandbox and send the job again.",
		})
	default:
		return d.Force(ctx, r.Ref, farm.JobCanceled, sandboxGone())
	}
}

// endLeftOver ends a job that is left over from a sandbox that has ended: whoever ended it died before its jobs were ended.
func (d *Dispatcher) endLeftOver(ctx context.Context, r *store.Route) error {
	reason := ""
	if r.SandboxState == farm.SandboxLost {
		s, err := d.store.Sandbox(ctx, farm.Ref{Tenant: r.Ref.Tenant, ID: r.SandboxID})
		if err != nil && farm.CodeOf(err) != farm.CodeNotFound {
			return err
		}
		if s != nil {
			reason = s.Reason
		}
	}
	return d.endWithSandbox(ctx, r, r.SandboxState, reason)
}

// creates reports whether a job makes its sandbox.
func creates(r store.Route) bool { return r.Kind == farm.KindCreate || r.Kind == farm.KindRun }

// sandboxWithJobs reads a sandbox and its unfinished jobs, in the order in which they were accepted. No sandbox, and no error, if its record
// is gone. If only its document is gone, it has what is needed to end it.
func (d *Dispatcher) sandboxWithJobs(ctx context.Context, ref farm.Ref) (*farm.Sandbox, []store.Route, error) {
	s, err := d.store.Sandbox(ctx, ref)
	if farm.CodeOf(err) == farm.CodeNotFound {
		return nil, nil, nil
	}
	if err != nil && !errors.Is(err, store.ErrDocumentGone) {
		return nil, nil, err
	}
	jobs, err := d.store.SandboxRoutes(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	return s, jobs, nil
}
