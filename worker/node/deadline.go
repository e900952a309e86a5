package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// deadlineTimeout bounds the message to one agent. An agent that does not answer keeps the deadline that it knows, and gets
// the new one from the next SyncDeadlines.
const deadlineTimeout = 5 * time.Second

// deadlines are those that agents know. An agent ends its sandbox a few seconds after its deadline, so that a sandbox
// ends even if no worker is alive; so it must receive every change.
type deadlines struct {
	rounds *rounds // of SyncDeadlines

	mu    sync.Mutex
	known map[string]time.Time // by sandbox; the zero time: none, or nobody knows which
}

// knows reports whether an agent has this deadline, from this worker or from the worker that made its container.
func (d *deadlines) knows(s *farm.Sandbox, label time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	known, ok := d.known[s.ID]
	if !ok {
		known = label
	}
	return known.Sub(s.ExpiresAt).Abs() < time.Second // the label of a container has whole seconds
}

// retain forgets sandboxes that are not among these.
func (d *deadlines) retain(open []*farm.Sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := make(map[string]time.Time, len(open))
	for _, s := range open {
		if at, ok := d.known[s.ID]; ok {
			known[s.ID] = at
		}
	}
	d.known = known
}

// SendDeadline sends a sandbox's deadline to its agent.
func (n *Node) SendDeadline(ctx context.Context, s *farm.Sandbox) error {
	return n.sendDeadline(ctx, s, s.ExpiresAt, func(ctx context.Context, c *client.Client) error {
		return c.SetDeadline(ctx, s.ExpiresAt.Sub(n.deps.Now()))
	})
}

const (
	// awake is how long an agent whose deadline is suspended runs without a worker: longer than a checkpoint may take, and than a worker needs to
	// send the deadline after a resume.
	awake = 30 * time.Minute
	// farAway is longer than a sandbox may live, with everything that may keep it from being closed.
	farAway = 90 * 24 * time.Hour
)

// SuspendDeadline takes the deadline from the agent of a sandbox that hibernates: its deadline may be moved meanwhile, and the agent would end
// the sandbox by the old one as soon as it is resumed. SendDeadline sets it again, or else SyncDeadlines. If no worker does, the agent ends the
// sandbox when it has run for the time awake.
func (n *Node) SuspendDeadline(ctx context.Context, s *farm.Sandbox) error {
	return n.sendDeadline(ctx, s, time.Time{}, func(ctx context.Context, c *client.Client) error { return c.SuspendDeadline(ctx, awake, farAway) })
}

// sendDeadline sends a deadline. known is what the agent knows then; if it cannot be sent, SyncDeadlines sends the deadline of the record.
func (n *Node) sendDeadline(ctx context.Context, s *farm.Sandbox, known time.Time, send func(context.Context, *client.Client) error) error {
	ctx, done := context.WithTimeout(ctx, deadlineTimeout)
	defer done()
	c, err := n.Connect(ctx, s)
	if err == nil {
		err = send(ctx, c)
	}
	if err != nil {
		known = time.Time{}
	}
	n.deadlines.mu.Lock()
	defer n.deadlines.mu.Unlock()
	n.deadlines.known[s.ID] = known
	return err
}

// SyncDeadlines sends the deadlines that changed to the agents of the open sandboxes of this node, and those that an agent may not know since it was
// resumed by another worker, in rounds, see rounds. It does not wait.
func (n *Node) SyncDeadlines(open []*farm.Sandbox, containers []farm.Container) {
	labels := make(map[string]time.Time, len(containers))
	for _, c := range containers {
		labels[c.SandboxID] = c.Deadline
	}
	n.deadlines.retain(open)
	var changed []*farm.Sandbox
	for _, s := range open {
		label := labels[s.ID]
		if slices.Contains(n.hibernates, s.Runtime) {
			label = time.Time{} // a worker suspends the deadline for a checkpoint, and may have died before it sent it again
		}
		if !n.deadlines.knows(s, label) && s.State.Accepts() && s.State != farm.SandboxHibernated { // a resume sends it
			changed = append(changed, s)
		}
	}
	n.deadlines.rounds.begin(changed, func(s *farm.Sandbox) {
		if err := n.SendDeadline(n.base, s); err != nil && n.base.Err() == nil {
			n.deps.Log.DebugContext(n.base, "agent does not know its new deadline yet", "sandbox_id", s.ID, "error", err)
		}
	})
}
