package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

const (
	gVisorRounds = 5  // sandboxes of each runtime, in turn
	gVisorPrints = 40 // in each
	gVisorOutput = "import sys\nfor _ in range(100):\n    sys.stdout.write('x' * 999_999 + '\\n')"
)

// runtimeTimes is what sandboxes of one runtime took, a value for each sandbox or call.
type runtimeTimes struct{ create, boot, print, output, install, memory []time.Duration }

// benchGVisor does the same in sandboxes of runc and of gVisor, in turn, in one farm. The engine must have runsc (make gvisor).
func benchGVisor(ctx context.Context, b *bench) ([]row, error) {
	u, err := startUpstream(ctx, lines[0])
	if err != nil {
		return nil, err
	}
	defer u.close()
	f, err := start(ctx, b.program, "SANDFARM_ENGINE_RUNTIME=runc", "SANDFARM_ENGINE_RUNTIMES=runc,runsc", "SANDFARM_PYPI_INDEX_URL="+u.url)
	if err != nil {
		return nil, err
	}
	defer f.close()
	times := map[string]*runtimeTimes{"runc": {}, "runsc": {}}
	for range gVisorRounds {
		for _, runtime := range []string{"runc", "runsc"} {
			if err := f.inRuntime(ctx, runtime, times[runtime]); err != nil {
				return nil, fmt.Errorf("%s: %w", runtime, err)
			}
		}
	}
	host, own := times["runc"], times["runsc"]
	line := func(what, aim string, of func(*runtimeTimes) []time.Duration, show func(time.Duration) string) row {
		a, b := quantile(of(own), 0.5), quantile(of(host), 0.5)
		return row{what: what, ours: "gVisor " + show(a), other: "runc " + show(b), ratio: fmt.Sprintf("%.2f×", float64(a)/float64(b)), aim: aim}
	}
	return []row{
		line("cold create, p50", "", func(t *runtimeTimes) []time.Duration { return t.create }, ms),
		line("restart of the kernel until `print(1)` has answered, p50", "", func(t *runtimeTimes) []time.Duration { return t.boot }, ms),
		line("`print(1)` through REST with `wait`, p50", "≤ 2.5×", func(t *runtimeTimes) []time.Duration { return t.print }, ms),
		line("100 MB to stdout in 100 lines, p50", "", func(t *runtimeTimes) []time.Duration { return t.output }, ms),
		line("install numpy, cached by the farm, p50", "", func(t *runtimeTimes) []time.Duration { return t.install }, ms),
		line("memory of a sandbox after a `print(1)`, p50", "", func(t *runtimeTimes) []time.Duration { return t.memory },
			func(d time.Duration) string { return fmt.Sprintf("%.0f MiB", float64(d)/(1<<20)) }),
	}, nil
}

// inRuntime measures one sandbox with a runtime.
func (b *bench) inRuntime(ctx context.Context, runtime string, t *runtimeTimes) error {
	began := time.Now()
	made, err := b.CreateSandbox(ctx, wire.CreateRequest{Runtime: &runtime}, client.WithWait(time.Minute))
	if err != nil {
		return err
	}
	if made.Job.State != "completed" {
		return client.Failure(made.Job)
	}
	t.create = append(t.create, time.Since(began))
	id := made.Sandbox.ID
	defer func() { _, _ = b.Close(ctx, id, client.WithWait(time.Minute)) }()
	if _, _, err := b.execute(ctx, id, "print(1)"); err != nil {
		return err
	}
	memory, err := containerMemory(ctx, id)
	if err != nil {
		return err
	}
	t.memory = append(t.memory, time.Duration(memory))
	for range gVisorPrints {
		_, took, err := b.execute(ctx, id, "print(1)")
		if err != nil {
			return err
		}
		t.print = append(t.print, took)
	}
	began = time.Now()
	if _, err := b.Restart(ctx, id, client.WithWait(time.Minute)); err != nil {
		return err
	}
	if _, _, err := b.execute(ctx, id, "print(1)"); err != nil {
		return err
	}
	t.boot = append(t.boot, time.Since(began))
	_, took, err := b.execute(ctx, id, gVisorOutput)
	if err != nil {
		return err
	}
	t.output = append(t.output, took)
	if len(t.create) == 1 && runtime == "runc" { // fills the farm's cache
		if _, err := b.install(ctx, id, wanted); err != nil {
			return err
		}
		return nil
	}
	if took, err = b.install(ctx, id, wanted); err == nil {
		t.install = append(t.install, took)
	}
	return err
}

// containerMemory is what `docker stats` shows of a sandbox, in bytes.
func containerMemory(ctx context.Context, sandbox string) (int64, error) {
	names, err := exec.CommandContext(ctx, "docker", "ps", "--quiet", "--filter", "name="+sandbox).Output()
	if err != nil {
		return 0, fmt.Errorf("find the container: %w", err)
	}
	list := strings.Fields(string(names))
	if len(list) != 1 {
		return 0, fmt.Errorf("sandbox %s has %d containers", sandbox, len(list))
	}
	out, err := exec.CommandContext(ctx, "docker", slices.Concat([]string{"stats", "--no-stream", "--format", "{{.MemUsage}}"}, list)...).Output()
	if err != nil {
		return 0, fmt.Errorf("read the container's memory: %w", err)
	}
	var used float64
	var unit string
	if _, err := fmt.Sscanf(string(out), "%f%s", &used, &unit); err != nil || unit != "MiB" {
		return 0, fmt.Errorf("docker stats shows %q, want MiB: %w", out, err)
	}
	return int64(used * (1 << 20)), nil
}
