package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

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
