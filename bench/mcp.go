package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
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
