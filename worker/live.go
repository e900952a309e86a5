package worker

import (
	"context"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/store"
)

// listen begins to take interactive streams, if the settings say so.
func (w *Worker) listen(ctx context.Context) error {
	if w.cfg.Listen == relay.ListenNone || w.deps.LiveAddress == nil {
		return nil
	}
	address, err := w.deps.LiveAddress(w.cfg.Listen)
	if err != nil {
		return err
	}
	w.identity = relay.NewIdentity(relay.IdentityConfig{Source: w.store, Role: relay.Worker, Name: w.id, Now: w.now, Log: w.log})
	if err := w.identity.Refresh(ctx); err != nil {
		return err
	}
	server := relay.NewServer(relay.ServerConfig{
		Listen: address, Connections: w.cfg.LiveConnections, Streams: w.cfg.LiveStreams, Tenant: w.cfg.Limits.LiveStreams,
	}, relay.ServerDeps{
		Identity: w.identity, Sandboxes: w.store, Node: w.node.ID, Connect: w.node.Connect, DialPort: w.node.DialPort, Used: w.noteUse, Memory: w.deps.Memory, Log: w.log,
	})
	if err := server.Start(ctx); err != nil {
		return fmt.Errorf("take interactive streams (worker.listen): %w", err)
	}
	w.live = server
	w.background.Go(func() { w.identity.Keep(w.base) })
	return nil
}

// liveAddress is the address to announce; empty: the worker does not listen.
func (w *Worker) liveAddress() string {
	if w.live == nil {
		return ""
	}
	return w.live.Addr()
}

// noteUse notes that a sandbox is in use now, so that its idle limit counts from here.
func (w *Worker) noteUse(ctx context.Context, box *farm.Sandbox) error {
	_, err := w.store.MoveSandbox(ctx, store.Move{Ref: box.Ref(), Touch: true, Generation: box.Generation})
	return err
}
