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
func benchCPU(ctx context.Context, b *bench) ([]row, error) {
	const blocks, calls = 10, 100
	id, err := b.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = b.Close(ctx, id) }()
	for range 100 { // warm
		if _, _, err := b.execute(ctx, id, "print(1)"); err != nil {
			return nil, err
		}
	}
	container, err := containerProcess(ctx, id)
	if err != nil {
		return nil, err
	}
	var ours, direct float64
	for range blocks {
		before := cpuSeconds(b.cmd.Process.Pid, container)
		for range calls {
			if _, _, err := b.execute(ctx, id, "print(1)"); err != nil {
				return nil, err
			}
		}
		ours += cpuSeconds(b.cmd.Process.Pid, container) - before
		out, err := b.floor(ctx, id, "cpu", strconv.Itoa(calls))
		if err != nil {
			return nil, err
		}
		seconds, err := strconv.ParseFloat(out, 64)
		if err != nil {
			return nil, err
		}
		direct += seconds
	}
	return []row{{
		what: "CPU seconds of all processes for 1 000 `print(1)`", ours: fmt.Sprintf("%.2f s", ours), other: fmt.Sprintf("ipykernel and its client %.2f s", direct),
		ratio: fmt.Sprintf("%.2f×", ours/direct),
	}}, nil
}

// containerProcess is the first process of a sandbox, as this machine numbers it.
func containerProcess(ctx context.Context, sandbox string) (int, error) {
	name, err := exec.CommandContext(ctx, "docker", "ps", "--quiet", "--filter", "name="+sandbox).Output()
	if err != nil {
		return 0, fmt.Errorf("find the container: %w", err)
	}
	pid, err := exec.CommandContext(ctx, "docker", "inspect", "--format", "{{.State.Pid}}", strings.TrimSpace(string(name))).Output()
	if err != nil {
		return 0, fmt.Errorf("find the container's process: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(pid)))
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
func benchCommands(ctx context.Context, b *bench) ([]row, error) {
	const jobs = 300
	id, err := b.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = b.Close(ctx, id) }()
	count := func(work func() error) (calls, seconds float64, err error) {
		before, err := b.commands(ctx)
		if err != nil {
			return 0, 0, err
		}
		began := time.Now()
		if err := work(); err != nil {
			return 0, 0, err
		}
		seconds = time.Since(began).Seconds()
		after, err := b.commands(ctx)
		return after - before, seconds, err
	}
	if _, _, err := b.execute(ctx, id, "print(1)"); err != nil {
		return nil, err
	}
	idle, rest, err := count(func() error { time.Sleep(10 * time.Second); return nil })
	if err != nil {
		return nil, err
	}
	busy, took, err := count(func() error {
		for range jobs {
			if _, _, err := b.execute(ctx, id, "print(1)"); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	each := (busy - idle/rest*took) / jobs
	return []row{{
		what: "Redis commands for each `print(1)` with `wait`", ours: fmt.Sprintf("%.1f", each), other: fmt.Sprintf("idle farm %.1f/s", idle/rest), aim: "bounded by a test",
	}}, nil
}

// commands returns how many commands the farm has sent to Redis so far, from its own metric.
func (b *bench) commands(ctx context.Context) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL()+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(request) //nolint:forbidigo // a measurement, bounded by the run
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(line, "sandfarm_redis_commands_total{") {
			n, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}
