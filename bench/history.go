package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// noTasks enqueues nothing: no worker has these jobs.
const noTasks = "local function enqueueTask() end\n"

// fill adds n finished jobs in idle sandboxes to the farm's Redis, with the store's own scripts. Their node has no worker, so only
// their records exist.
func (b *bench) fill(ctx context.Context, n, lanes int) error {
	rdb := b.redis()
	defer func() { _ = rdb.Close() }()
	st := store.New(rdb, noTasks, store.Options{Limits: farm.DefaultLimits()})
	defer func() { _ = st.Close() }()
	const tenant = "default"
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for range lanes {
		g.Go(func() error {
			now := time.Now().UTC()
			box := &farm.Sandbox{
				ID: farm.NewID(farm.SandboxPrefix), Tenant: tenant, State: farm.SandboxQueued, CreatedAt: now, LastUsedAt: now, ExpiresAt: now.Add(time.Hour),
				Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone},
			}
			for i := range n / lanes {
				job := &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: tenant, Kind: farm.KindCreate, SandboxID: box.ID, CreatedAt: now, Queue: "bench"}
				accept := store.Accept{Job: job, Request: &farm.Request{Sandbox: &box.Spec}, Sandbox: box}
				if i > 0 {
					job.Kind, accept.Sandbox = farm.KindExecute, nil
					accept.Request = &farm.Request{Execute: &farm.ExecuteRequest{Code: "print(1)", Language: "python", Context: "default"}}
				}
				if _, err := st.Accept(ctx, accept); err != nil {
					return fmt.Errorf("accept: %w", err)
				}
				claim, err := st.Claim(ctx, job.Ref(), "bench")
				if err != nil {
					return fmt.Errorf("claim: %w", err)
				}
				if i == 0 {
					for _, to := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
						if _, err := st.MoveSandbox(ctx, store.Move{Ref: farm.Ref{Tenant: tenant, ID: box.ID}, To: to, Node: "bench"}); err != nil {
							return err
						}
					}
				}
				result := &farm.Result{Execute: &farm.ExecuteResult{Stdout: "1\n", ExecutionCount: i}}
				if _, err := st.Finish(ctx, store.Finish{Ref: job.Ref(), Attempt: claim.Job.Attempt, State: farm.JobCompleted, Result: result}); err != nil {
					return fmt.Errorf("finish: %w", err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}
