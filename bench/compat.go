package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

const compatPairs = 200

// surface is the interface of an earlier system to run code, and the same work under /v1.
type surface struct {
	name, was string // results measured with the real system
	ours      func(ctx context.Context, sandbox string) (answer string, err error)
	v1        func(ctx context.Context, sandbox string) error
}

// benchCompat compares an execute through the interface of each earlier system with the same under /v1, alternating in one sandbox.
func benchCompat(ctx context.Context, b *bench) []row {
	web := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1}}
	defer web.CloseIdleConnections()
	execute := func(ctx context.Context, sandbox string) error {
		_, _, err := b.execute(ctx, sandbox, "print(1)")
		return err
	}
	command := func(ctx context.Context, sandbox string) error {
		job, err := b.Command(ctx, sandbox, wire.CommandRequest{Commands: []string{"echo 1"}}, client.WithWait(30*time.Second))
		if err == nil && job.State != "completed" {
			err = fmt.Errorf("command: %s", job.State)
		}
		return err
	}
	rest := func(path, kind, body string) func(context.Context, string) (string, error) {
		return func(ctx context.Context, sandbox string) (string, error) {
			fill := strings.NewReplacer("SANDBOX", sandbox).Replace
			return post(ctx, web, b.URL()+fill(path), kind, fill(body))
		}
	}
	docker, env := newMCPClient(b.URL()+"/mcp/docker-sandbox"), newMCPClient(b.URL()+"/mcp/python-env")
	for _, c := range []*mcpClient{docker, env} {
		defer c.http.CloseIdleConnections()
		check(c.open(ctx))
	}
	list := []surface{
		{
			"MCP Sandbox, `POST /mcp/tools/execute_python_code`", "1286 ms",
			rest("/mcp/tools/execute_python_code", "application/json", `{"sandbox_id":"SANDBOX","code":"print(1)"}`), execute,
		}, {
			"Docker Code Sandbox, `sandbox_exec` of `echo 1`", "274 ms",
			func(ctx context.Context, sandbox string) (string, error) {
				return docker.text(ctx, "sandbox_exec", map[string]any{"container_id": sandbox, "commands": []string{"echo 1"}})
			}, command,
		}, {
			"Python MCP Sandbox, `execute_python_code`", "209 ms",
			func(ctx context.Context, sandbox string) (string, error) {
				return env.text(ctx, "execute_python_code", map[string]any{"container_id": sandbox, "code": "print(1)"})
			}, execute,
		}, {
			"LLM Python Code Sandbox, `POST /sandbox/{id}/execute`", "10 022 ms",
			rest("/sandbox/SANDBOX/execute", "text/plain", "print(1)"), execute,
		},
	}
	var rows []row
	for _, s := range list {
		rows = append(rows, b.surface(ctx, s))
	}
	return rows
}

// surface measures one interface in a sandbox of its own.
func (b *bench) surface(ctx context.Context, s surface) row {
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	var ours, v1 []time.Duration
	for n := range compatPairs + 20 {
		began := time.Now()
		answer := must(s.ours(ctx, id))
		took := time.Since(began)
		if !strings.Contains(answer, `"1\n"`) {
			fail("%s answers %s", s.name, answer)
		}
		began = time.Now()
		check(s.v1(ctx, id))
		if n >= 20 { // warm
			ours, v1 = append(ours, took), append(v1, time.Since(began))
		}
	}
	return row{
		what: s.name + ", p50 (p95)", ours: spread(ours),
		other: fmt.Sprintf("`/v1` %s (%s); the system itself was measured at %s", ms(quantile(v1, 0.5)), ms(quantile(v1, 0.95)), s.was),
		ratio: times(quantile(ours, 0.5), quantile(v1, 0.5)), aim: "≤ 1.5×",
	}
}

// post sends a body and returns the response; any status but success is an error.
func post(ctx context.Context, web *http.Client, url, kind, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewBufferString(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := web.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("POST %s: %s: %s", url, resp.Status, text)
	}
	return string(text), err
}

// text calls a tool and returns the text of its answer.
func (c *mcpClient) text(ctx context.Context, name string, arguments map[string]any) (string, error) {
	raw, err := c.send(ctx, "tools/call", map[string]any{"name": name, "arguments": arguments}, false)
	if err != nil {
		return "", err
	}
	var result struct {
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
	}
	if err := json.Unmarshal(raw, &result); err != nil || len(result.Content) == 0 {
		return "", fmt.Errorf("%s answers %s: %w", name, raw, err)
	}
	return result.Content[0].Text, nil
}

//go:embed e2b.py
var e2bScript string

const (
	e2bCreates = poolSize * 3 / 4
	e2bPairs   = 200
)

// seconds are measured durations.
type seconds []float64

func (s seconds) durations() []time.Duration {
	out := make([]time.Duration, len(s))
	for i, one := range s {
		out[i] = time.Duration(one * float64(time.Second))
	}
	return out
}

// benchE2B compares print(1) by run_code of E2B's SDK for Python with the same by REST, by the same HTTP library. The farm has a pool.
func benchE2B(ctx context.Context, b *bench) []row {
	dir := os.Getenv("SANDFARM_TEST_E2B")
	if dir == "" {
		fail("SANDFARM_TEST_E2B does not name the SDKs of E2B: run the benchmarks with make")
	}
	farm := start(ctx, b.program, fmt.Sprintf("SANDFARM_WORKER_POOL=python=%d", poolSize))
	defer farm.close()
	farm.filled(ctx)
	door := farm.URL() + "/e2b"
	run := exec.CommandContext(ctx, filepath.Join(dir, "venv", "bin", "python"), "-c", e2bScript, strconv.Itoa(e2bCreates), strconv.Itoa(e2bPairs)) //nolint:gosec // our own script
	run.Env, run.Stderr = append(os.Environ(), "E2B_API_URL="+door, "E2B_SANDBOX_URL="+door, "E2B_API_KEY=e2b_00"), os.Stderr
	text, err := run.Output()
	if err != nil {
		fail("measure E2B's SDK: %w", err)
	}
	var took struct{ Create, SDK, REST seconds }
	if err := json.Unmarshal(text, &took); err != nil {
		fail("read %q: %w", text, err)
	}
	create, sdk, rest := took.Create.durations(), took.SDK.durations(), took.REST.durations()
	return []row{{
		what: "`print(1)` by `run_code` of E2B's SDK, p50 (p95)", ours: spread(sdk),
		other: "REST with `wait` " + spread(rest), ratio: times(quantile(sdk, 0.5), quantile(rest, 0.5)), aim: "≤ 1.3×",
	}, {
		what: "`Sandbox.create` of E2B's SDK from the pool, p50 (p95)", ours: spread(create), aim: "< 30 ms",
	}}
}
