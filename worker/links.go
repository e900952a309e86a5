package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// links holds one stream for each sandbox that this worker speaks to. One that breaks is forgotten, and dialled again on
// its next use.
type links struct {
	mu     sync.Mutex
	open   map[string]*link
	closed bool
	wg     sync.WaitGroup

	broke, refused func() // told of a stream that broke, and of one that could not be opened; nil: nobody
}

// link is a stream that is open or being opened. No caller's context ends it: the callers of a sandbox share it.
type link struct {
	stop   context.CancelFunc
	ready  chan struct{} // closed when client or err is set
	client *client.Client
	err    error
}

// link gives the agent of a sandbox.
func (w *Worker) link(ctx context.Context, sandbox *farm.Sandbox) (*client.Client, error) {
	// The link is every caller's, so it lives until it is dropped and not as long as one of them.
	l, err := w.links.get(context.WithoutCancel(ctx), sandbox.ID, func(ctx context.Context) (*client.Client, error) {
		return w.dial(ctx, sandbox)
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-l.ready:
		return l.client, l.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// connect opens a stream to a container's agent: straight to its socket where the container is near, else through an exec.
func (w *Worker) connect(ctx context.Context, container string) (io.ReadWriteCloser, error) {
	conn, err := w.engine.DialNear(ctx, container, agent.SocketPath)
	if err == nil || !errors.Is(err, engine.ErrFar) {
		return conn, err
	}
	user := fmt.Sprintf("%d:%d", agent.DialUID, agent.DialUID)
	return w.engine.Dial(ctx, container, []string{agent.BinaryPath, "dial"}, user)
}

func (w *Worker) dial(ctx context.Context, sandbox *farm.Sandbox) (*client.Client, error) {
	conn, err := w.connect(ctx, w.containerOf(sandbox))
	if err != nil {
		return nil, fmt.Errorf("dial agent: %w", err)
	}
	c, err := client.New(conn, client.Options{Index: w.indexFor(sandbox)})
	if err != nil {
		_ = conn.Close()
		return nil, farm.Wrap(err, farm.CodeUnavailable, "The sandbox's agent does not answer")
	}
	return c, nil
}

// indexFor answers the connections that a sandbox's agent opens: its network is the package indexes, or nothing.
func (w *Worker) indexFor(sandbox *farm.Sandbox) http.Handler {
	if sandbox.Spec.Network != farm.NetworkPackages {
		return nil
	}
	return w.deps.Index
}

// get gives the link to a sandbox; where there is none that lives, dial makes it.
func (ls *links) get(ctx context.Context, sandboxID string, dial func(context.Context) (*client.Client, error)) (*link, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed {
		return nil, errStopping
	}
	if l, ok := ls.open[sandboxID]; ok && !l.over() {
		return l, nil
	}
	ctx, stop := context.WithCancel(ctx)
	l := &link{stop: stop, ready: make(chan struct{})}
	ls.open[sandboxID] = l
	ls.wg.Go(func() {
		defer stop()
		l.client, l.err = dial(ctx)
		close(l.ready)
		if l.err == nil {
			select {
			case <-l.client.Done():
				tell(ctx, ls.broke)
			case <-ctx.Done():
			}
			_ = l.client.Close()
		} else {
			tell(ctx, ls.refused)
		}
		ls.forget(sandboxID, l)
	})
	return l, nil
}

// tell counts what happened to a stream that nobody here closed.
func tell(ctx context.Context, count func()) {
	if count != nil && ctx.Err() == nil {
		count()
	}
}

// over reports whether a link has failed or broken.
func (l *link) over() bool {
	select {
	case <-l.ready:
	default:
		return false
	}
	if l.err != nil {
		return true
	}
	select {
	case <-l.client.Done():
		return true
	default:
		return false
	}
}

// has reports whether a stream to a sandbox is open or being opened.
func (ls *links) has(sandboxID string) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l, ok := ls.open[sandboxID]
	return ok && !l.over()
}

func (ls *links) forget(sandboxID string, l *link) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.open[sandboxID] == l {
		delete(ls.open, sandboxID)
	}
}

// drop closes the stream to a sandbox that is going away.
func (ls *links) drop(sandboxID string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l, ok := ls.open[sandboxID]; ok {
		l.stop()
		delete(ls.open, sandboxID)
	}
}

// closeAll closes every stream, waits, and lets no new one be opened.
func (ls *links) closeAll() {
	ls.mu.Lock()
	ls.closed = true
	for id, l := range ls.open {
		l.stop()
		delete(ls.open, id)
	}
	ls.mu.Unlock()
	ls.wg.Wait()
}

// containerOf names a sandbox's container for the engine: its id, or the name that it always has.
func (w *Worker) containerOf(s *farm.Sandbox) string {
	if s.Container != "" {
		return s.Container
	}
	return w.engine.Name(s.ID)
}
