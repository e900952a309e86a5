package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

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
	answer := must(http.DefaultClient.Do(request)) //nolint:forbidigo // a measurement, bounded by the run
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
