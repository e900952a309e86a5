package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
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

const (
	mcpPairs    = 300
	mcpRevision = "2025-11-25"
)

// mcpClient calls the tools at an address over one connection that stays open.
type mcpClient struct {
	http *http.Client
	url  string
	id   int
}

func newMCPClient(url string) *mcpClient {
	return &mcpClient{http: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1}}, url: url}
}

// send sends one message and returns the result. A notification has none.
func (c *mcpClient) send(ctx context.Context, method string, params any, notify bool) (json.RawMessage, error) {
	message := map[string]any{"jsonrpc": "2.0", "method": method, "params": params}
	if !notify {
		c.id++
		message["id"] = c.id
	}
	body, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("MCP-Protocol-Version", mcpRevision)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if notify {
		return nil, nil
	}
	if _, data, ok := bytes.Cut(text, []byte("data: ")); ok && resp.Header.Get("Content-Type") != "application/json" { // one event
		text, _, _ = bytes.Cut(data, []byte("\n"))
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("%s answers %d: %w", method, resp.StatusCode, err)
	}
	if answer.Result == nil {
		return nil, fmt.Errorf("%s answers %s", method, text)
	}
	return answer.Result, nil
}

// open does the handshake of a client.
func (c *mcpClient) open(ctx context.Context) error {
	_, err := c.send(ctx, "initialize", map[string]any{
		"protocolVersion": mcpRevision, "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "bench", "version": "1"},
	}, false)
	if err == nil {
		_, err = c.send(ctx, "notifications/initialized", map[string]any{}, true)
	}
	return err
}

// tool calls a tool and returns the state and the output of its job.
func (c *mcpClient) tool(ctx context.Context, name string, arguments map[string]any) (state, stdout string, err error) {
	text, err := c.send(ctx, "tools/call", map[string]any{"name": name, "arguments": arguments}, false)
	if err != nil {
		return "", "", err
	}
	var result struct {
		IsError    bool            `json:"isError"`
		Content    json.RawMessage `json:"content"`
		Structured struct {
			State  string `json:"state"`
			Stdout string `json:"stdout"`
		} `json:"structuredContent"`
	}
	if err := json.Unmarshal(text, &result); err != nil {
		return "", "", err
	}
	if result.IsError {
		return "", "", fmt.Errorf("%s: %s", name, result.Content)
	}
	return result.Structured.State, result.Structured.Stdout, nil
}

// benchMCP compares print(1) through the tool with print(1) through REST with wait, alternating in one kernel.
func benchMCP(ctx context.Context, b *bench) []row {
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	c := newMCPClient(b.URL() + "/mcp")
	defer c.http.CloseIdleConnections()
	check(c.open(ctx))
	var tool, rest []time.Duration
	for n := range mcpPairs + 30 {
		began := time.Now()
		state, stdout := must2(c.tool(ctx, "execute_python_code", map[string]any{"sandbox_id": id, "code": "print(1)"}))
		took := time.Since(began)
		if state != "completed" || stdout != "1\n" {
			fail("execute_python_code: %s, %q", state, stdout)
		}
		_, other := must2(b.execute(ctx, id, "print(1)"))
		if n >= 30 { // warm
			tool, rest = append(tool, took), append(rest, other)
		}
	}
	return []row{{
		what: "`print(1)` by MCP's `execute_python_code`, p50 (p95)", ours: spread(tool),
		other: "REST with `wait` " + spread(rest), ratio: times(quantile(tool, 0.5), quantile(rest, 0.5)), aim: "≤ 1.5×",
	}}
}

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
