package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

const (
	poolSize  = 20
	poolBurst = 100
	poolAlone = 64 // containers that the engine alone starts at once: as many as a worker has slots
)

// benchPool compares creates from a warm pool with cold creates, and a burst that is larger than the pool with the time that the engine
// alone needs for the rest.
func benchPool(ctx context.Context, b *bench) []row {
	f := start(ctx, b.program, fmt.Sprintf("SANDFARM_WORKER_POOL=python=%d", poolSize), "SANDFARM_WORKER_CREATE_TIMEOUT=10m")
	defer f.close()
	f.filled(ctx)
	warm := f.creates(ctx, poolSize*3/4, wire.CreateRequest{})
	f.filled(ctx)
	cold := f.creates(ctx, 7, wire.CreateRequest{Env: map[string]string{"COLD": "1"}}) // variables rule out a pool member
	f.filled(ctx)
	burst := f.burst(ctx)
	alone := engineAlone(ctx, poolBurst-poolSize)
	p50 := quantile(warm, 0.5)
	return []row{{
		what: "create from the warm pool, REST with `wait`, p50 (p95)", ours: fmt.Sprintf("%s (%s)", ms(p50), ms(quantile(warm, 0.95))),
		other: "cold create " + spread(cold), ratio: times(p50, quantile(cold, 0.5)), aim: "< 20 ms",
	}, {
		what: fmt.Sprintf("%d creates at once with a pool of %d, until the last is ready", poolBurst, poolSize), ours: fmt.Sprintf("%.1f s", burst.Seconds()),
		other: fmt.Sprintf("%d docker run + kernel boot %.1f s", poolBurst-poolSize, alone.Seconds()), ratio: times(burst, alone), aim: "≤ 1.2×",
	}}
}

// filled waits until the pool is full.
func (b *bench) filled(ctx context.Context) {
	until(ctx, "fill the pool", func() bool {
		workers, err := b.Workers(ctx)
		return err == nil && len(workers) == 1 && len(workers[0].Pool) == 1 && workers[0].Pool[0].Ready >= poolSize
	})
}

// creates creates sandboxes one after the other and returns how long each took. They are closed at the end.
func (b *bench) creates(ctx context.Context, n int, request wire.CreateRequest) []time.Duration {
	var all []time.Duration
	var ids []string
	for range n {
		began := time.Now()
		made := must(b.CreateSandbox(ctx, request, client.WithWait(time.Minute)))
		all = append(all, time.Since(began))
		check(client.Failure(made.Job))
		ids = append(ids, made.Sandbox.ID)
	}
	for _, id := range ids {
		must(b.Close(ctx, id, client.WithWait(time.Minute)))
	}
	return all
}

// burst creates many sandboxes at once and returns the time until the last one was ready.
func (b *bench) burst(ctx context.Context) time.Duration {
	var group errgroup.Group
	began := time.Now()
	for range poolBurst {
		group.Go(func() error {
			made, err := b.CreateSandbox(ctx, wire.CreateRequest{}, client.WithWait(time.Minute))
			if err == nil && !made.Job.Final() {
				made.Job, err = b.Wait(ctx, made.Job.ID)
			}
			return cmp.Or(err, client.Failure(made.Job))
		})
	}
	check(group.Wait())
	return time.Since(began)
}

// engineAlone starts containers of the same image and a kernel in each, without the farm.
func engineAlone(ctx context.Context, n int) time.Duration {
	var group errgroup.Group
	group.SetLimit(poolAlone)
	began := time.Now()
	for range n {
		group.Go(func() error { return bootAlone(ctx) })
	}
	check(group.Wait())
	return time.Since(began)
}

// bootAlone starts a container of the same image and a kernel in it, which answers print(1), without the farm.
func bootAlone(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "docker", "run", "--rm", "-i", "--network=none", "sandfarm/python:latest", "python", "-c", string(floorScript), "boot")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker run: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
