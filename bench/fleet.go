package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// redis returns a client of the farm's own Redis.
func (b *bench) redis() *redis.Client {
	return redis.NewClient(&redis.Options{Network: "unix", Addr: b.data + "/redis/redis.sock"})
}

// fleet is a set of additional workers that share a node of their own.
type fleet struct {
	b         *bench
	namespace string
	workers   map[string]*service // by the worker's id
}

func (b *bench) fleet() *fleet {
	return &fleet{b: b, namespace: filepath.Base(b.data) + "-fleet", workers: map[string]*service{}}
}

// add starts another worker and waits until it is registered.
func (f *fleet) add(ctx context.Context, set ...string) error {
	known, err := f.b.Workers(ctx)
	if err != nil {
		return err
	}
	s, err := f.b.service("worker", append([]string{"SANDFARM_ENGINE_NAMESPACE=" + f.namespace}, set...)...)
	if err != nil {
		return err
	}
	return until(ctx, "start a worker", func() bool {
		now, err := f.b.Workers(ctx)
		for _, w := range now {
			if err == nil && !slices.ContainsFunc(known, func(k wire.Worker) bool { return k.ID == w.ID }) {
				f.workers[w.ID] = s
				return true
			}
		}
		return false
	})
}

// end sends a worker a signal and waits until it has ended.
func (f *fleet) end(id string, signal syscall.Signal) error {
	s := f.workers[id]
	delete(f.workers, id)
	err := s.cmd.Process.Signal(signal)
	_ = s.cmd.Wait()
	return err
}

// close stops the workers and removes their containers from the engine.
func (f *fleet) close() {
	for _, s := range f.workers {
		s.close()
	}
}

// sandboxes creates n sandboxes on the node of these workers. Other workers take some of the creates, so it makes more attempts.
func (f *fleet) sandboxes(ctx context.Context, n int) ([]string, error) {
	var ids []string
	for range 50 * n {
		id, err := f.b.sandbox(ctx)
		if err != nil {
			return nil, err
		}
		out, err := exec.CommandContext(ctx, "docker", "ps", "-q", "--filter", "label=sandfarm.sandbox="+id, "--filter", "label=sandfarm.namespace="+f.namespace).Output()
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(string(out)) == "" {
			if _, err := f.b.Close(ctx, id, client.WithWait(time.Minute)); err != nil {
				return nil, err
			}
			continue
		}
		if ids = append(ids, id); len(ids) == n {
			return ids, nil
		}
	}
	return nil, errors.New("too few sandboxes were created by the fleet")
}

// benchTakeover stops the worker of a running job and measures the time until another worker has the job.
func benchTakeover(ctx context.Context, b *bench) ([]row, error) {
	f := b.fleet()
	defer f.close()
	for range 2 {
		if err := f.add(ctx); err != nil {
			return nil, err
		}
	}
	boxes, err := f.sandboxes(ctx, 1)
	if err != nil {
		return nil, err
	}
	killed, err := f.takeovers(ctx, boxes[0], 10, syscall.SIGKILL)
	if err != nil {
		return nil, err
	}
	stopped, err := f.takeovers(ctx, boxes[0], 5, syscall.SIGTERM)
	if err != nil {
		return nil, err
	}
	text := func(all []time.Duration) string {
		return fmt.Sprintf("p50 %.1f s, p95 %.1f s", quantile(all, 0.5).Seconds(), quantile(all, 0.95).Seconds())
	}
	return []row{{
		what: "job taken over after kill -9 (10 kills)", ours: text(killed), other: "after SIGTERM (5) " + text(stopped), aim: "p95 < 15 s",
	}}, nil
}

func (f *fleet) takeovers(ctx context.Context, box string, n int, signal syscall.Signal) ([]time.Duration, error) {
	rdb := f.b.redis()
	defer func() { _ = rdb.Close() }()
	var all []time.Duration
	for range n {
		job, err := f.b.Execute(ctx, box, wire.ExecuteRequest{Code: "import time; time.sleep(120)"})
		if err != nil {
			return nil, err
		}
		holder := func() string { return rdb.HGet(ctx, "sf:{default}:job:"+job.ID, "worker").Val() }
		if err := until(ctx, "a worker takes the job", func() bool { return f.workers[holder()] != nil }); err != nil {
			return nil, err
		}
		victim, began := holder(), time.Now()
		if err := f.end(victim, signal); err != nil {
			return nil, err
		}
		if err := until(ctx, "another worker takes the job", func() bool { return f.workers[holder()] != nil }); err != nil {
			return nil, err
		}
		all = append(all, time.Since(began))
		if _, err := f.b.Cancel(ctx, job.ID); err != nil {
			return nil, err
		}
		if _, err := f.b.Wait(ctx, job.ID); err != nil {
			return nil, err
		}
		if err := f.add(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// benchWorkers runs jobs that sleep for 50 ms with one, two and four workers of one slot each.
func benchWorkers(ctx context.Context, b *bench) ([]row, error) {
	const callers, lasts = 8, 8 * time.Second
	f := b.fleet()
	defer f.close()
	if err := f.add(ctx); err != nil { // a worker with many slots, which creates the sandboxes
		return nil, err
	}
	boxes, err := f.sandboxes(ctx, callers)
	if err != nil {
		return nil, err
	}
	for id := range f.workers {
		if err := f.end(id, syscall.SIGTERM); err != nil {
			return nil, err
		}
	}
	var rates []float64
	for _, n := range []int{1, 2, 4} {
		for len(f.workers) < n {
			if err := f.add(ctx, "SANDFARM_WORKER_SLOTS=1"); err != nil {
				return nil, err
			}
		}
		rate, err := b.sleepers(ctx, boxes, lasts)
		if err != nil {
			return nil, err
		}
		rates = append(rates, rate)
	}
	rows := make([]row, 0, 2)
	for i, n := range []int{2, 4} {
		rows = append(rows, row{
			what: fmt.Sprintf("jobs that sleep for 50 ms, %d workers of one slot", n), ours: fmt.Sprintf("%.0f/s", rates[i+1]),
			other: fmt.Sprintf("1 worker %.0f/s", rates[0]), ratio: fmt.Sprintf("%.2f×", rates[i+1]/rates[0]), aim: fmt.Sprintf("%d×", n),
		})
	}
	return rows, nil
}

// sleepers keeps every sandbox busy with jobs that sleep and returns how many end per second.
func (b *bench) sleepers(ctx context.Context, boxes []string, lasts time.Duration) (float64, error) {
	done := make([]int, len(boxes))
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for i, box := range boxes {
		g.Go(func() error {
			for time.Since(began) < lasts {
				if _, _, err := b.execute(ctx, box, "import time; time.sleep(0.05)"); err != nil {
					return err
				}
				done[i]++
			}
			return nil
		})
	}
	err := g.Wait()
	sum := 0
	for _, n := range done {
		sum += n
	}
	return float64(sum) / time.Since(began).Seconds(), err
}
