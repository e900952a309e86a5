package mcpsandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	prefix     = "python-sandbox-"
	nameLabel  = "python-sandbox" // label with the name of a sandbox
	createWait = 45 * time.Second // work may be sent before it is ready
	closeWait  = time.Duration(0) // of a sandbox whose name was taken meanwhile
	shortID    = len("sbx_") + 8  // characters of sandbox_short_id
	stampForm  = time.RFC3339     // of created and last_used
)

// creator creates sandboxes. In this system, names of open sandboxes are unique; the farm's own names need not be.
type creator struct {
	mu     sync.Mutex
	naming map[string]chan struct{} // names being created; each channel is closed at the end of its create
}

// hold allows one create at a time for each name. Creates of other names do not wait.
func (m *creator) hold(ctx context.Context, name string) (release func(), err error) {
	for {
		m.mu.Lock()
		busy, taken := m.naming[name]
		if !taken {
			over := make(chan struct{})
			if m.naming == nil {
				m.naming = map[string]chan struct{}{}
			}
			m.naming[name] = over
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				delete(m.naming, name)
				close(over)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, farm.Wrap(context.Cause(ctx), farm.CodeUnavailable, "The call ended before its work.")
		}
	}
}

// made is the answer of create_sandbox.
type made struct {
	SandboxID   string `json:"sandbox_id"`
	SandboxName string `json:"sandbox_name"`
	Name        string `json:"name"`
	Status      string `json:"status"`
}

func (m *creator) create(ctx context.Context, c *toolset.Call) (any, error) {
	name := strings.TrimSpace(c.Text("name"))
	if name == "" {
		var own [4]byte
		_, _ = rand.Read(own[:]) // it never fails
		name = hex.EncodeToString(own[:])
	}
	name = prefix + name
	box, job, err := m.begin(ctx, c.Farm, name)
	if err != nil {
		return nil, err
	}
	job, err = c.Await(ctx, createWait, func(wait time.Duration) (wire.Job, error) { return c.Farm.Job(ctx, job.ID, wait) })
	if err != nil {
		return nil, err
	}
	if job.Final() && job.State != "completed" {
		return nil, farm.Errorf(farm.CodeUnavailable, "The sandbox could not be created: %s", toolset.Unfinished(&job))
	}
	return made{SandboxID: box.ID, SandboxName: name, Name: name, Status: "active"}, nil
}

// begin creates a sandbox with a name that no open sandbox has. If two servers create the same name at once, the later sandbox is
// closed.
func (m *creator) begin(ctx context.Context, f toolset.Farm, name string) (wire.Sandbox, wire.Job, error) {
	release, err := m.hold(ctx, name)
	if err != nil {
		return wire.Sandbox{}, wire.Job{}, err
	}
	defer release()
	labels := map[string]string{nameLabel: name}
	there, err := f.Labeled(ctx, labels)
	if err != nil {
		return wire.Sandbox{}, wire.Job{}, err
	}
	if len(there) > 0 {
		return wire.Sandbox{}, wire.Job{}, taken(name)
	}
	out, err := f.CreateSandbox(ctx, wire.CreateRequest{Name: name, Labels: labels}, 0)
	if err != nil {
		return wire.Sandbox{}, wire.Job{}, err
	}
	if there, err = f.Labeled(ctx, labels); err != nil {
		return wire.Sandbox{}, wire.Job{}, err
	}
	for _, other := range there {
		if other.ID != out.Sandbox.ID && before(&other, &out.Sandbox) {
			_, _ = f.CloseSandbox(ctx, out.Sandbox.ID, closeWait) // if this fails, it expires
			return wire.Sandbox{}, wire.Job{}, taken(name)
		}
	}
	return out.Sandbox, out.Job, nil
}

func before(a, b *wire.Sandbox) bool {
	if !a.CreatedAt.Equal(b.CreatedAt) {
		return a.CreatedAt.Before(b.CreatedAt)
	}
	return a.ID < b.ID
}

func taken(name string) error {
	return farm.Conflictf("There is already a sandbox with the name %q: list_sandboxes has its id. Use it, or give another name.", farm.Shorten(name))
}

// Find finds the open sandbox with a name.
func Find(ctx context.Context, f toolset.Farm, name string) (wire.Sandbox, error) {
	there, err := f.Labeled(ctx, map[string]string{nameLabel: name})
	if err == nil && len(there) == 0 { // one created through another interface
		there, err = f.Sandboxes(ctx)
	}
	if err != nil {
		return wire.Sandbox{}, err
	}
	for i := range there {
		if name != "" && (there[i].Name == name || there[i].Labels[nameLabel] == name) {
			return there[i], nil
		}
	}
	return wire.Sandbox{}, farm.NotFoundf("There is no open sandbox with the name %q.", farm.Shorten(name))
}

// listed is one entry of list_sandboxes.
type listed struct {
	SandboxID      string  `json:"sandbox_id"`
	SandboxShortID string  `json:"sandbox_short_id"`
	Name           string  `json:"name"`
	Status         string  `json:"status"`
	Image          string  `json:"image"`
	Created        string  `json:"created"`
	LastUsed       *string `json:"last_used"`
	CPU            float64 `json:"cpu"`
}

func list(ctx context.Context, c *toolset.Call) (any, error) {
	boxes, err := c.Farm.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]listed, len(boxes))
	for i := range boxes {
		b := &boxes[i]
		out[i] = listed{
			SandboxID: b.ID, SandboxShortID: b.ID[:min(shortID, len(b.ID))], Name: b.Name, Status: status(b.State), Image: b.Image,
			Created: b.CreatedAt.UTC().Format(stampForm), CPU: b.Resources.CPUs,
		}
		if !b.LastUsedAt.IsZero() {
			used := b.LastUsedAt.UTC().Format(stampForm)
			out[i].LastUsed = &used
		}
	}
	return out, nil
}

// status is the state of a sandbox in Docker's words.
func status(state string) string {
	switch farm.SandboxState(state) {
	case farm.SandboxQueued, farm.SandboxStarting:
		return "created"
	case farm.SandboxReady, farm.SandboxBusy:
		return "running"
	case farm.SandboxHibernated:
		return "paused"
	case farm.SandboxClosing:
		return "removing"
	default:
		return "exited"
	}
}
