package worker

import (
	"context"
	"fmt"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// links holds one stream for each sandbox that this worker speaks to. A broken one is dialled again on its next use.
type links struct {
	mu   sync.Mutex
	open map[string]*link
}

// link is a stream that is open or being opened; ready is closed when it is either.
type link struct {
	ready  chan struct{}
	client *client.Client
	err    error
}

// link gives the agent of a sandbox.
func (w *Worker) link(ctx context.Context, sandbox *farm.Sandbox) (*client.Client, error) {
	for {
		w.links.mu.Lock()
		l, ok := w.links.open[sandbox.ID]
		if !ok {
			l = &link{ready: make(chan struct{})}
			w.links.open[sandbox.ID] = l
		}
		w.links.mu.Unlock()
		if !ok {
			l.client, l.err = w.dial(ctx, sandbox)
			if l.err != nil {
				w.links.forget(sandbox.ID, l)
			}
			close(l.ready)
			return l.client, l.err
		}
		select {
		case <-l.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if l.err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if context.Cause(ctx) == nil && (farm.CodeOf(l.err) != farm.CodeInternal) {
				return nil, l.err
			}
			continue // another caller's attempt failed, perhaps with its context
		}
		select {
		case <-l.client.Done():
			w.links.forget(sandbox.ID, l)
			continue
		default:
			return l.client, nil
		}
	}
}

func (w *Worker) dial(ctx context.Context, sandbox *farm.Sandbox) (*client.Client, error) {
	user := fmt.Sprintf("%d:%d", agent.DialUID, agent.DialUID)
	conn, err := w.engine.Dial(ctx, w.containerOf(sandbox), []string{agent.BinaryPath, "dial"}, user)
	if err != nil {
		return nil, fmt.Errorf("dial agent: %w", err)
	}
	c, err := client.New(conn, client.Options{})
	if err != nil {
		_ = conn.Close()
		return nil, farm.Wrap(err, farm.CodeUnavailable, "The sandbox's agent does not answer")
	}
	return c, nil
}

func (ls *links) forget(sandboxID string, l *link) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.open[sandboxID] == l {
		delete(ls.open, sandboxID)
	}
	if l.client != nil {
		_ = l.client.Close()
	}
}

// drop closes the stream to a sandbox that is going away.
func (ls *links) drop(sandboxID string) {
	ls.mu.Lock()
	l := ls.open[sandboxID]
	delete(ls.open, sandboxID)
	ls.mu.Unlock()
	if l == nil {
		return
	}
	<-l.ready
	if l.client != nil {
		_ = l.client.Close()
	}
}

func (ls *links) closeAll() {
	ls.mu.Lock()
	ids := make([]string, 0, len(ls.open))
	for id := range ls.open {
		ids = append(ids, id)
	}
	ls.mu.Unlock()
	for _, id := range ids {
		ls.drop(id)
	}
}

// containerOf names a sandbox's container for the engine: its id, or the name that it always has.
func (w *Worker) containerOf(s *farm.Sandbox) string {
	if s.Container != "" {
		return s.Container
	}
	return w.engine.Name(s.ID)
}
