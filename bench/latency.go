package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
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

// benchCPU adds up what 1 000 print(1) through REST cost all processes of the farm: API, worker, scheduler, Redis, the sandbox's agent and its
// kernel. The comparison is Jupyter's client and its kernel in the same sandbox. Blocks of both alternate.
func benchCPU(ctx context.Context, b *bench) []row {
	const blocks, calls = 10, 100
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	for range 100 { // warm
		must2(b.execute(ctx, id, "print(1)"))
	}
	container := containerProcess(ctx, id)
	var ours, direct float64
	for range blocks {
		before := cpuSeconds(b.cmd.Process.Pid, container)
		for range calls {
			must2(b.execute(ctx, id, "print(1)"))
		}
		ours += cpuSeconds(b.cmd.Process.Pid, container) - before
		out := must(b.floor(ctx, id, "cpu", strconv.Itoa(calls)))
		seconds := must(strconv.ParseFloat(out, 64))
		direct += seconds
	}
	return []row{{
		what: "CPU seconds of all processes for 1 000 `print(1)`", ours: fmt.Sprintf("%.2f s", ours), other: fmt.Sprintf("ipykernel and its client %.2f s", direct),
		ratio: fmt.Sprintf("%.2f×", ours/direct),
	}}
}

// containerProcess is the first process of a sandbox, as this machine numbers it.
func containerProcess(ctx context.Context, sandbox string) int {
	name := must(exec.CommandContext(ctx, "docker", "ps", "--quiet", "--filter", "label=sandfarm.sandbox="+sandbox).Output())
	pid := must(exec.CommandContext(ctx, "docker", "inspect", "--format", "{{.State.Pid}}", strings.TrimSpace(string(name))).Output())
	return must(strconv.Atoi(strings.TrimSpace(string(pid))))
}

// cpuSeconds is what some processes and all that they started have used so far. Those that have ended do not count.
func cpuSeconds(roots ...int) (sum float64) {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // behind the name: state, parent, …
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], pid)
	}
	for len(roots) > 0 {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", roots[0]))
		for _, path := range threads {
			text, _ := os.ReadFile(path)
			used, _, _ := strings.Cut(string(text), " ")
			nanoseconds, _ := strconv.ParseFloat(used, 64)
			sum += nanoseconds / 1e9
		}
		roots = append(roots[1:], children[roots[0]]...)
	}
	return sum
}

// benchCommands counts the Redis commands of each job, without those that an idle farm sends too.
func benchCommands(ctx context.Context, b *bench) []row {
	const jobs = 300
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	count := func(work func()) (calls, seconds float64) {
		before, began := b.commands(ctx), time.Now()
		work()
		seconds = time.Since(began).Seconds()
		return b.commands(ctx) - before, seconds
	}
	must2(b.execute(ctx, id, "print(1)"))
	idle, rest := count(func() { time.Sleep(10 * time.Second) })
	busy, took := count(func() {
		for range jobs {
			must2(b.execute(ctx, id, "print(1)"))
		}
	})
	each := (busy - idle/rest*took) / jobs
	return []row{{
		what: "Redis commands for each `print(1)` with `wait`", ours: fmt.Sprintf("%.1f", each), other: fmt.Sprintf("idle farm %.1f/s", idle/rest), aim: "bounded by a test",
	}}
}

// commands returns how many commands the farm has sent to Redis so far, from its own metric.
func (b *bench) commands(ctx context.Context) float64 {
	request := must(http.NewRequestWithContext(ctx, http.MethodGet, b.URL()+"/metrics", http.NoBody))
	answer := must(http.DefaultClient.Do(request)) //nolint:bodyclose,forbidigo // a measurement, bounded by the run; closed below
	defer func() { _ = answer.Body.Close() }()
	text := must(io.ReadAll(answer.Body))
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(line, "sandfarm_redis_commands_total{") {
			sum += must(strconv.ParseFloat(fields[1], 64))
		}
	}
	return sum
}
