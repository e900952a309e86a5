package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// mcpSessions is how many clients there are at once.
const mcpSessions = 1000

// benchSessions measures the memory of a separate API process: without clients, with 1 000 clients that have initialized, listed the
// tools and keep their connection open, and with all of them waiting in a call.
func benchSessions(ctx context.Context, b *bench) []row {
	listen := freeAddress()
	api := b.service("api", "SANDFARM_API_LISTEN="+listen)
	defer api.close()
	beside := must(client.New("http://" + listen))
	until(ctx, "start an API", func() bool { return beside.Ready(ctx) == nil })
	warm := newMCPClient(beside.URL() + "/mcp")
	for range 200 { // warm up
		check(warm.hold(ctx))
	}
	warm.http.CloseIdleConnections()
	pid := api.cmd.Process.Pid
	none := settled(ctx, pid)

	clients := make([]*mcpClient, mcpSessions)
	var g errgroup.Group
	g.SetLimit(16)
	for i := range clients {
		clients[i] = newMCPClient(beside.URL() + "/mcp")
		defer clients[i].http.CloseIdleConnections()
		g.Go(func() error { return clients[i].hold(ctx) })
	}
	check(g.Wait())
	open := settled(ctx, pid)
	held := connections(pid)
	waiting := b.allWait(ctx, clients, pid)
	return []row{
		{what: fmt.Sprintf("memory of an API process with 1 000 MCP clients (%d open sockets)", held), ours: fmt.Sprintf("%d MiB", open>>20), other: fmt.Sprintf("with none %d MiB", none>>20), ratio: fmt.Sprintf("%d KiB each", (open-none)>>10/mcpSessions)},
		{what: "and with all 1 000 waiting in a call", ours: fmt.Sprintf("%d MiB", waiting>>20), other: "", ratio: fmt.Sprintf("%d KiB each", (waiting-none)>>10/mcpSessions)},
	}
}

// hold initializes and lists the tools; the connection stays open.
func (c *mcpClient) hold(ctx context.Context) error {
	if err := c.open(ctx); err != nil {
		return err
	}
	_, err := c.send(ctx, "tools/list", map[string]any{}, false)
	return err
}

// allWait makes every client wait for one running job and returns the memory during that.
func (b *bench) allWait(ctx context.Context, clients []*mcpClient, pid int) int64 {
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	job := must(b.Execute(ctx, id, wire.ExecuteRequest{Code: "import time\ntime.sleep(300)"}))
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	failed := make(chan error, len(clients))
	for _, c := range clients {
		wg.Go(func() {
			_, _, err := c.tool(ctx, "get_job_result", map[string]any{"job_id": job.ID, "wait_seconds": 45})
			if ctx.Err() == nil {
				failed <- cmp.Or(err, errors.New("a call returned that should wait"))
			}
		})
	}
	until(ctx, "have all calls wait", func() bool { return inFlight(ctx, clients[0].url) > mcpSessions })
	memory := settled(ctx, pid)
	select {
	case early := <-failed:
		check(early)
	default:
	}
	return memory
}

// inFlight returns how many requests an API is handling, including this one.
func inFlight(ctx context.Context, url string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/mcp")+"/metrics", nil)
	if err != nil {
		return 0
	}
	resp, err := http.DefaultClient.Do(req) //nolint:forbidigo // it ends with the benchmark
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	_, text, _ = bytes.Cut(text, []byte("\nsandfarm_http_requests_in_flight "))
	n := 0
	_, _ = fmt.Fscan(bytes.NewReader(text), &n)
	return n
}

// settled waits until the resident memory of a process is stable and returns it.
func settled(ctx context.Context, pid int) int64 {
	var last int64
	for range 10 {
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			check(ctx.Err())
		}
		now := resident(pid, "VmRSS")
		if last > 0 && max(now-last, last-now) < last/100 {
			return now
		}
		last = now
	}
	return last
}

// connections counts the open sockets of a process.
func connections(pid int) int {
	list := must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)))
	n := 0
	for _, e := range list {
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); err == nil && len(to) > 6 && to[:6] == "socket" {
			n++
		}
	}
	return n
}

// noTasks enqueues nothing: no worker has these jobs.
const noTasks = "local function enqueueTask() end\n"

// fill adds n finished jobs in idle sandboxes to the farm's Redis, with the store's own scripts. Their node has no worker, so only
// their records exist.
func (b *bench) fill(ctx context.Context, n, lanes int) {
	rdb := b.redis()
	defer func() { _ = rdb.Close() }()
	st := store.New(rdb, noTasks, store.Options{Limits: farm.DefaultLimits()})
	defer func() { _ = st.Close() }()
	const tenant = "default"
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for range lanes {
		g.Go(func() error {
			now := time.Now().UTC()
			box := &farm.Sandbox{
				ID: farm.NewID(farm.SandboxPrefix), Tenant: tenant, State: farm.SandboxQueued, CreatedAt: now, LastUsedAt: now, ExpiresAt: now.Add(time.Hour),
				Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone},
			}
			for i := range n / lanes {
				job := &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: tenant, Kind: farm.KindCreate, SandboxID: box.ID, CreatedAt: now, Queue: "bench"}
				accept := store.Accept{Job: job, Request: &farm.Request{Sandbox: &box.Spec}, Sandbox: box}
				if i > 0 {
					job.Kind, accept.Sandbox = farm.KindExecute, nil
					accept.Request = &farm.Request{Execute: &farm.ExecuteRequest{Code: "print(1)", Language: "python", Context: "default"}}
				}
				if _, err := st.Accept(ctx, accept); err != nil {
					return fmt.Errorf("accept: %w", err)
				}
				claim, err := st.Claim(ctx, job.Ref(), "bench")
				if err != nil {
					return fmt.Errorf("claim: %w", err)
				}
				if i == 0 {
					for _, to := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
						if _, err := st.MoveSandbox(ctx, store.Move{Ref: farm.Ref{Tenant: tenant, ID: box.ID}, To: to, Node: "bench"}); err != nil {
							return err
						}
					}
				}
				result := &farm.Result{Execute: &farm.ExecuteResult{Stdout: "1\n", ExecutionCount: i}}
				if _, err := st.Finish(ctx, store.Finish{Ref: job.Ref(), Attempt: claim.Job.Attempt, State: farm.JobCompleted, Result: result}); err != nil {
					return fmt.Errorf("finish: %w", err)
				}
			}
			return nil
		})
	}
	check(g.Wait())
}
