//go:build integration

package main_test

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Trace and span of the caller in these tests.
const (
	callersTrace = "0af7651916cd43dd8448eb211c80319c"
	callersSpan  = "b7ad6b7169203331"
	toolsTrace   = "1af7651916cd43dd8448eb211c80319c"
)

// collected is an OpenTelemetry collector that stores the spans that it receives.
type collected struct {
	mu    sync.Mutex
	spans []*spans.Span
}

func newCollector(t *testing.T) (*collected, string) {
	t.Helper()
	c := &collected{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			var err error
			if body, err = gzip.NewReader(r.Body); err != nil {
				t.Errorf("read spans: %v", err)
				return
			}
		}
		raw, err := io.ReadAll(body)
		var got collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(raw, &got)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, of := range got.GetResourceSpans() {
			for _, by := range of.GetScopeSpans() {
				c.spans = append(c.spans, by.GetSpans()...)
			}
		}
	}))
	t.Cleanup(server.Close)
	return c, server.URL
}

// path returns the names of a trace's span and of those above it, from the caller's down; "" while there is none.
func (c *collected) path(trace, name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	byID := map[string]*spans.Span{}
	var last *spans.Span
	for _, s := range c.spans {
		if hex.EncodeToString(s.GetTraceId()) == trace {
			byID[string(s.GetSpanId())] = s
			if s.GetName() == name {
				last = s
			}
		}
	}
	var names []string
	for s := last; s != nil; s = byID[string(s.GetParentSpanId())] {
		names = append([]string{s.GetName()}, names...)
		if hex.EncodeToString(s.GetParentSpanId()) == callersSpan {
			names = append([]string{"caller"}, names...)
		}
	}
	return strings.Join(names, " > ")
}

// TestOneTraceFromTheCallerToTheAgent sends a request with a traceparent and finds its trace in every part of the work.
func TestOneTraceFromTheCallerToTheAgent(t *testing.T) {
	t.Parallel()
	c, endpoint := newCollector(t)
	received := make(chan string, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r.Header.Get("Traceparent") }))
	t.Cleanup(receiver.Close)
	f := newFarm(t, "SANDFARM_TELEMETRY_OTLP_ENDPOINT="+endpoint, "SANDFARM_API_ALLOW_PRIVATE_CALLBACKS=true")
	box := f.sandbox(wire.CreateRequest{}).ID

	post := func(path, trace, body string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+path, strings.NewReader(body))
		testbed.Must(t, err)
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Accept", "application/json, text/event-stream")
		if trace != "" {
			request.Header.Set("Traceparent", "00-"+trace+"-"+callersSpan+"-01")
		}
		answer, err := http.DefaultClient.Do(request)
		testbed.Must(t, err)
		defer func() { _ = answer.Body.Close() }()
		if text, _ := io.ReadAll(answer.Body); answer.StatusCode >= 300 {
			t.Fatalf("%s: %s %s", path, answer.Status, text)
		}
	}
	post("/v1/sandboxes/"+box+"/execute?wait=30", callersTrace, `{"code":"print(1)","callback_url":"`+receiver.URL+`"}`)
	post("/mcp", "", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_python_code","arguments":{"sandbox_id":"`+box+
		`","code":"print(2)"},"_meta":{"traceparent":"00-`+toolsTrace+`-`+callersSpan+`-01"}}}`)

	execute := "caller > POST /v1/sandboxes/:id/execute"
	tool := "caller > tools/call execute_python_code"
	wanted := []struct{ trace, span, path string }{
		{callersTrace, "queue", execute + " > queue"},
		{callersTrace, "agent", execute + " > job execute > agent"},
		{callersTrace, "run", execute + " > job execute > run"},
		{callersTrace, "collect", execute + " > job execute > collect"},
		{callersTrace, "callback", execute + " > callback"},
		{toolsTrace, "queue", tool + " > queue"},
		{toolsTrace, "agent", tool + " > job execute > agent"},
	}
	for _, want := range wanted {
		got := ""
		for end := time.Now().Add(time.Minute); got != want.path && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			got = c.path(want.trace, want.span)
		}
		testbed.Diff(t, fmt.Sprintf("the path to %s", want.span), want.path, got)
	}
	select {
	case parent := <-received:
		if !strings.HasPrefix(parent, "00-"+callersTrace+"-") || strings.Contains(parent, callersSpan) {
			t.Errorf("the callback has traceparent %q", parent)
		}
	case <-time.After(time.Minute):
		t.Error("no callback came")
	}
}

// maxCommands bounds the Redis commands of one execution, from the request to the answer.
const maxCommands = 9

// TestRedisCommandsForEachJob counts the farm's commands to Redis while some jobs run, many times over, and takes the fewest: what an idle farm
// sends, and what jobs cost more on a busy machine, only adds to it. The farm's collector of traces does not answer, which only loses spans.
func TestRedisCommandsForEachJob(t *testing.T) {
	t.Parallel()
	f := newFarm(t, "SANDFARM_TELEMETRY_OTLP_ENDPOINT=http://"+testbed.Address(t))
	box := f.sandbox(wire.CreateRequest{}).ID
	f.run(box, "print(1)")
	const times, jobs, commands = 25, 4, "sandfarm_redis_commands_total{"
	each := math.Inf(1)
	for range times {
		before := f.metric(commands)
		for range jobs {
			f.run(box, "print(1)")
		}
		each = min(each, (f.metric(commands)-before)/jobs)
	}
	t.Logf("%.1f commands for each job", each)
	if each < 3 || each > maxCommands {
		t.Errorf("%.1f commands for each job, at most %d are allowed", each, maxCommands)
	}
}

// metric is the sum of the farm's series that begin like this.
func (f *farmProcess) metric(series string) (sum float64) {
	f.t.Helper()
	for line := range strings.Lines(string(download(f.t, f.url+"/metrics"))) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(line, series) {
			n, err := strconv.ParseFloat(fields[1], 64)
			testbed.Must(f.t, err)
			sum += n
		}
	}
	return sum
}
