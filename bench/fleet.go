package main

import (
	"context"
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
func (f *fleet) add(ctx context.Context, set ...string) {
	known := must(f.b.Workers(ctx))
	s := f.b.service("worker", append([]string{"SANDFARM_ENGINE_NAMESPACE=" + f.namespace}, set...)...)
	until(ctx, "start a worker", func() bool {
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
func (f *fleet) end(id string, signal syscall.Signal) {
	s := f.workers[id]
	delete(f.workers, id)
	check(s.cmd.Process.Signal(signal))
	_ = s.cmd.Wait()
}

// close stops the workers and removes their containers from the engine.
func (f *fleet) close() {
	for _, s := range f.workers {
		s.close()
	}
}

// sandboxes creates n sandboxes on the node of these workers. Other workers take some of the creates, so it makes more attempts.
func (f *fleet) sandboxes(ctx context.Context, n int) []string {
	var ids []string
	for range 50 * n {
		id := must(f.b.sandbox(ctx))
		out := must(exec.CommandContext(ctx, "docker", "ps", "-q", "--filter", "label=sandfarm.sandbox="+id, "--filter", "label=sandfarm.namespace="+f.namespace).Output())
		if strings.TrimSpace(string(out)) == "" {
			must(f.b.Close(ctx, id, client.WithWait(time.Minute)))
			continue
		}
		if ids = append(ids, id); len(ids) == n {
			return ids
		}
	}
	fail("too few sandboxes were created by the fleet")
	return nil
}

// benchTakeover stops the worker of a running job and measures the time until another worker has the job.
func benchTakeover(ctx context.Context, b *bench) []row {
	f := b.fleet()
	defer f.close()
	for range 2 {
		f.add(ctx)
	}
	boxes := f.sandboxes(ctx, 1)
	killed := f.takeovers(ctx, boxes[0], 10, syscall.SIGKILL)
	stopped := f.takeovers(ctx, boxes[0], 5, syscall.SIGTERM)
	text := func(all []time.Duration) string {
		return fmt.Sprintf("p50 %.1f s, p95 %.1f s", quantile(all, 0.5).Seconds(), quantile(all, 0.95).Seconds())
	}
	return []row{{
		what: "job taken over after kill -9 (10 kills)", ours: text(killed), other: "after SIGTERM (5) " + text(stopped), aim: "p95 < 15 s",
	}}
}

func (f *fleet) takeovers(ctx context.Context, box string, n int, signal syscall.Signal) []time.Duration {
	rdb := f.b.redis()
	defer func() { _ = rdb.Close() }()
	var all []time.Duration
	for range n {
		job := must(f.b.Execute(ctx, box, wire.ExecuteRequest{Code: "import time; time.sleep(120)"}))
		holder := func() string { return rdb.HGet(ctx, "sf:{default}:job:"+job.ID, "worker").Val() }
		until(ctx, "a worker takes the job", func() bool { return f.workers[holder()] != nil })
		victim, began := holder(), time.Now()
		f.end(victim, signal)
		until(ctx, "another worker takes the job", func() bool { return f.workers[holder()] != nil })
		all = append(all, time.Since(began))
		must(f.b.Cancel(ctx, job.ID))
		must(f.b.Wait(ctx, job.ID))
		f.add(ctx)
	}
	return all
}

// benchWorkers runs jobs that sleep for 50 ms with one, two and four workers of one slot each.
func benchWorkers(ctx context.Context, b *bench) []row {
	const callers, lasts = 8, 8 * time.Second
	f := b.fleet()
	defer f.close()
	f.add(ctx) // a worker with many slots, which creates the sandboxes
	boxes := f.sandboxes(ctx, callers)
	for id := range f.workers {
		f.end(id, syscall.SIGTERM)
	}
	var rates []float64
	for _, n := range []int{1, 2, 4} {
		for len(f.workers) < n {
			f.add(ctx, "SANDFARM_WORKER_SLOTS=1")
		}
		rates = append(rates, b.sleepers(ctx, boxes, lasts))
	}
	rows := make([]row, 0, 2)
	for i, n := range []int{2, 4} {
		rows = append(rows, row{
			what: fmt.Sprintf("jobs that sleep for 50 ms, %d workers of one slot", n), ours: fmt.Sprintf("%.0f/s", rates[i+1]),
			other: fmt.Sprintf("1 worker %.0f/s", rates[0]), ratio: fmt.Sprintf("%.2f×", rates[i+1]/rates[0]), aim: fmt.Sprintf("%d×", n),
		})
	}
	return rows
}

// sleepers keeps every sandbox busy with jobs that sleep and returns how many end per second.
func (b *bench) sleepers(ctx context.Context, boxes []string, lasts time.Duration) float64 {
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
	check(g.Wait())
	sum := 0
	for _, n := range done {
		sum += n
	}
	return float64(sum) / time.Since(began).Seconds()
}
