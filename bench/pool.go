package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
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

// The number of null jobs in a round, and of the callers that submit them.
const (
	nullJobs    = 2000
	nullCallers = 32
	nullRounds  = 3
)

// benchNull submits jobs that do nothing (interrupts of idle sandboxes) through REST, and compares that with the same number of empty
// tasks of asynq alone, on the same Redis. Rounds of both alternate.
func benchNull(ctx context.Context, b *bench) []row {
	boxes := make([]string, 8)
	for i := range boxes {
		boxes[i] = must(b.sandbox(ctx))
		defer func() { _, _ = b.Close(ctx, boxes[i]) }()
	}
	rdb := b.redis()
	defer func() { _ = rdb.Close() }()
	var ours, bare []time.Duration
	for range nullRounds {
		ours, bare = append(ours, b.nullFarm(ctx, rdb, boxes)), append(bare, nullAsynq(ctx, rdb))
	}
	a, c := quantile(ours, 0.5), quantile(bare, 0.5)
	rate := func(d time.Duration) string { return fmt.Sprintf("%.0f/s", nullJobs/d.Seconds()) }
	return []row{{
		what: fmt.Sprintf("jobs that do nothing, %d of %d callers through REST, until the last is done", nullJobs, nullCallers),
		ours: rate(a), other: "asynq alone " + rate(c), ratio: fmt.Sprintf("%.2f", float64(c)/float64(a)), aim: "≥ 0.5",
	}}
}

// handIn calls f for each job, with several callers at once.
func handIn(ctx context.Context, f func(ctx context.Context, n int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for caller := range nullCallers {
		g.Go(func() error {
			for n := caller; n < nullJobs; n += nullCallers {
				if err := f(ctx, n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (b *bench) nullFarm(ctx context.Context, rdb *redis.Client, boxes []string) time.Duration {
	began := time.Now()
	check(handIn(ctx, func(ctx context.Context, n int) error {
		_, err := b.Interrupt(ctx, boxes[n%len(boxes)])
		return err
	}))
	for rdb.ZCard(ctx, "sf:{default}:open").Val() > 0 && ctx.Err() == nil {
		time.Sleep(2 * time.Millisecond)
	}
	check(ctx.Err())
	return time.Since(began)
}

func nullAsynq(ctx context.Context, rdb *redis.Client) time.Duration {
	var handled atomic.Int64
	done := make(chan struct{})
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 64, Queues: map[string]int{"bare": 1}, LogLevel: asynq.FatalLevel})
	check(server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if handled.Add(1) == nullJobs {
			close(done)
		}
		return nil
	})))
	defer server.Shutdown()
	c := asynq.NewClientFromRedisClient(rdb)
	began := time.Now()
	check(handIn(ctx, func(ctx context.Context, _ int) error {
		_, err := c.EnqueueContext(ctx, asynq.NewTask("null", nil), asynq.Queue("bare"))
		return err
	}))
	select {
	case <-done:
	case <-ctx.Done():
		check(context.Cause(ctx))
	}
	return time.Since(began)
}
