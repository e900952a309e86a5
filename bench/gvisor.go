package main

import (
	"context"
	"fmt"
	"os/exec"
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
func benchGVisor(ctx context.Context, b *bench) []row {
	u := startUpstream(ctx, lines[0])
	defer u.close()
	f := start(ctx, b.program, "SANDFARM_ENGINE_RUNTIME=runc", "SANDFARM_ENGINE_RUNTIMES=runc,runsc", "SANDFARM_PYPI_INDEX_URL="+u.url)
	defer f.close()
	times := map[string]*runtimeTimes{"runc": {}, "runsc": {}}
	for range gVisorRounds {
		for _, runtime := range []string{"runc", "runsc"} {
			f.inRuntime(ctx, runtime, times[runtime])
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
	}
}

// inRuntime measures one sandbox with a runtime.
func (b *bench) inRuntime(ctx context.Context, runtime string, t *runtimeTimes) {
	began := time.Now()
	made := must(b.CreateSandbox(ctx, wire.CreateRequest{Runtime: &runtime}, client.WithWait(time.Minute)))
	check(client.Failure(made.Job))
	t.create = append(t.create, time.Since(began))
	id := made.Sandbox.ID
	defer func() { _, _ = b.Close(ctx, id, client.WithWait(time.Minute)) }()
	must2(b.execute(ctx, id, "print(1)"))
	t.memory = append(t.memory, time.Duration(containerMemory(ctx, id)))
	for range gVisorPrints {
		_, took := must2(b.execute(ctx, id, "print(1)"))
		t.print = append(t.print, took)
	}
	began = time.Now()
	must(b.Restart(ctx, id, client.WithWait(time.Minute)))
	must2(b.execute(ctx, id, "print(1)"))
	t.boot = append(t.boot, time.Since(began))
	_, took := must2(b.execute(ctx, id, gVisorOutput))
	t.output = append(t.output, took)
	took = must(b.install(ctx, id, wanted))
	if len(t.create) > 1 || runtime != "runc" { // the first one fills the farm's cache
		t.install = append(t.install, took)
	}
}

// containerMemory is what `docker stats` shows of a sandbox, in bytes.
func containerMemory(ctx context.Context, sandbox string) int64 {
	name := must(exec.CommandContext(ctx, "docker", "ps", "--quiet", "--filter", "label=sandfarm.sandbox="+sandbox).Output())
	out := must(exec.CommandContext(ctx, "docker", "stats", "--no-stream", "--format", "{{.MemUsage}}", strings.TrimSpace(string(name))).Output())
	var used float64
	var unit string
	if _, err := fmt.Sscanf(string(out), "%f%s", &used, &unit); err != nil || unit != "MiB" {
		fail("docker stats shows %q, want MiB: %w", out, err)
	}
	return int64(used * (1 << 20))
}
