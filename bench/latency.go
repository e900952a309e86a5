package main

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

//go:embed floor.py
var floorScript []byte

// benchPrint compares print(1) through REST, with wait, with the same kernel called directly. Blocks of both alternate.
func benchPrint(ctx context.Context, b *bench) []row {
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	var ours, direct []time.Duration
	var queue, run float64
	for range 5 {
		for range 10 { // warm
			must2(b.execute(ctx, id, "print(1)"))
		}
		for range 100 {
			job, took := must2(b.execute(ctx, id, "print(1)"))
			ours = append(ours, took)
			queue += job.Timings.QueueMS
			run += job.Timings.RunMS
		}
		out := must(b.floor(ctx, id, "print", "100"))
		for line := range strings.Lines(out) {
			v := must(strconv.ParseFloat(strings.TrimSpace(line), 64))
			direct = append(direct, time.Duration(v*float64(time.Millisecond)))
		}
	}
	n := float64(len(ours))
	p50 := quantile(ours, 0.5)
	return []row{{
		what: "`print(1)` through REST with `wait`, p50 (p95)", ours: fmt.Sprintf("%s (%s)", ms(p50), ms(quantile(ours, 0.95))),
		other: "kernel called directly " + spread(direct),
		ratio: times(p50, quantile(direct, 0.5)), aim: "≤ 2×",
	}, {
		what: "of which, mean", ours: fmt.Sprintf("queue %.2f ms, sandbox %.2f ms", queue/n, run/n), other: "", ratio: "", aim: "queue < 3 ms",
	}}
}

const (
	clients = 8
	calls   = 10
	rounds  = 10 // of calls: one round is too short to measure
)

// benchThroughput runs 8 clients in 8 sandboxes, and the same with Jupyter's client inside the same sandboxes.
func benchThroughput(ctx context.Context, b *bench) []row {
	ids := make([]string, clients)
	for i := range ids {
		id := must(b.sandbox(ctx))
		ids[i] = id
		defer func() { _, _ = b.Close(ctx, id) }()
		must2(b.execute(ctx, id, "print(1)"))
	}
	began := time.Now()
	errs := make(chan error, clients)
	for _, id := range ids {
		go func() {
			for range calls * rounds {
				if _, _, err := b.execute(ctx, id, "print(1)"); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range ids {
		check(<-errs)
	}
	ours := float64(clients*calls*rounds) / time.Since(began).Seconds()

	var mu sync.Mutex
	var first, last float64
	for _, id := range ids {
		go func() {
			out, err := b.floor(ctx, id, "rate", strconv.Itoa(calls*rounds))
			var from, to float64
			if err == nil {
				_, err = fmt.Sscan(out, &from, &to)
			}
			mu.Lock()
			defer mu.Unlock()
			if first == 0 || from < first {
				first = from
			}
			last = max(last, to)
			errs <- err
		}()
	}
	for range ids {
		check(<-errs)
	}
	direct := float64(clients*calls*rounds) / (last - first)
	return []row{{
		what: "8 clients × 10 executes in 8 sandboxes (10 rounds)", ours: fmt.Sprintf("%.0f/s", ours), other: fmt.Sprintf("kernels called directly %.0f/s", direct),
		ratio: fmt.Sprintf("%.2f", ours/direct), aim: "300/s",
	}}
}

// benchCreate compares a cold create with docker run and the start of a kernel in the container.
func benchCreate(ctx context.Context, b *bench) []row {
	var ours, direct []time.Duration
	for range 7 {
		began := time.Now()
		made := must(b.CreateSandbox(ctx, wire.CreateRequest{}, client.WithWait(time.Minute)))
		must2(b.execute(ctx, made.Sandbox.ID, "print(1)"))
		ours = append(ours, time.Since(began))
		must(b.Close(ctx, made.Sandbox.ID, client.WithWait(time.Minute)))
		began = time.Now()
		check(bootAlone(ctx))
		direct = append(direct, time.Since(began))
	}
	return []row{{
		what: "cold create until `print(1)` has answered, p50", ours: ms(quantile(ours, 0.5)), other: "docker run + kernel boot + `print(1)` " + ms(quantile(direct, 0.5)),
		ratio: times(quantile(ours, 0.5), quantile(direct, 0.5)), aim: "≤ 1.2×",
	}}
}
