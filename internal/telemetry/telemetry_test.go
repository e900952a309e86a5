package telemetry_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/redis/go-redis/v9"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sandfarm/sandfarm/internal/telemetry"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func registry(t *testing.T) *prometheus.Registry {
	t.Helper()
	r, err := telemetry.NewRegistry("test", "v1")
	testbed.Must(t, err)
	return r
}

func scrape(t *testing.T, addr string) string {
	t.Helper()
	answer, err := http.Get("http://" + addr + "/metrics")
	testbed.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("scrape: %v, %s", err, answer.Status)
	}
	return string(body)
}

func TestServerShowsTheRegistry(t *testing.T) {
	t.Parallel()
	s := telemetry.NewServer("127.0.0.1:0", telemetry.Handler(registry(t)), slog.New(slog.DiscardHandler))
	defer s.Stop()
	testbed.Must(t, s.Start(t.Context()))
	body := scrape(t, s.Addr())
	for _, want := range []string{`sandfarm_build_info{service="test",version="v1"} 1`, "go_goroutines ", "process_resident_memory_bytes "} {
		if !strings.Contains(body, want) {
			t.Errorf("the metrics lack %q", want)
		}
	}
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/": http.StatusNotFound} {
		if answer, err := http.Get("http://" + s.Addr() + path); err != nil || answer.StatusCode != want {
			t.Errorf("%s: %v %v", path, answer, err)
		} else {
			_ = answer.Body.Close()
		}
	}
	second := telemetry.NewServer(s.Addr(), telemetry.Handler(registry(t)), slog.New(slog.DiscardHandler))
	if err := second.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "metrics.listen") {
		t.Errorf("an address that is taken: %v", err)
	}
}

func TestRegisterTwiceIsAnError(t *testing.T) {
	t.Parallel()
	r := registry(t)
	c := prometheus.NewGauge(prometheus.GaugeOpts{Name: "a", Help: "A."})
	testbed.Must(t, telemetry.Register(r, c))
	if err := telemetry.Register(r, c); err == nil {
		t.Error("registering a collector twice = nil, want an error")
	}
}

// bundle is a Redis whose clients are counted.
type bundle struct {
	server *miniredis.Miniredis
	rdb    *redis.Client
	reg    *prometheus.Registry
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{server: miniredis.RunT(t), reg: prometheus.NewRegistry()}
	figures, err := telemetry.NewRedis(b.reg)
	testbed.Must(t, err)
	b.rdb = redis.NewClient(&redis.Options{Addr: b.server.Addr(), MaxRetries: -1, DialTimeout: time.Second})
	b.rdb.AddHook(figures.Hook())
	t.Cleanup(func() { _ = b.rdb.Close() })
	return b
}

// value returns a series by the value of its only label: a counter, or the count of a histogram.
func (b *bundle) value(t *testing.T, name, label string) float64 {
	t.Helper()
	families, err := b.reg.Gather()
	testbed.Must(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

func TestRedisCommandsAreCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	testbed.Must(t, b.rdb.Set(ctx, "k", "v", 0).Err())
	b.rdb.Get(ctx, "missing")
	if _, err := b.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Get(ctx, "k")
		p.Get(ctx, "missing")
		p.Set(ctx, "other", "v", 0)
		return nil
	}); err != nil && err != redis.Nil { //nolint:errorlint // the pipeline gives it as it is
		t.Fatal(err)
	}
	b.rdb.BLPop(ctx, time.Second, "nothing")
	b.rdb.EvalSha(ctx, strings.Repeat("0", 40), nil)
	for what, want := range map[[2]string]float64{
		{"sandfarm_redis_commands_total", "set"}:          2,
		{"sandfarm_redis_commands_total", "get"}:          3,
		{"sandfarm_redis_commands_total", "blpop"}:        1,
		{"sandfarm_redis_round_trip_seconds", "set"}:      1,
		{"sandfarm_redis_round_trip_seconds", "pipeline"}: 1,
		{"sandfarm_redis_round_trip_seconds", "blpop"}:    0,
		{"sandfarm_redis_errors_total", "reply"}:          0,
		{"sandfarm_redis_errors_total", "network"}:        0,
	} {
		testbed.Diff(t, fmt.Sprintf("%s of %s", what[0], what[1]), want, b.value(t, what[0], what[1]))
	}
	families, err := b.reg.Gather()
	testbed.Must(t, err)
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("names: %v %v", problems, err)
	}
}

func TestRedisErrorsHaveAReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	testbed.Must(t, b.rdb.Set(t.Context(), "text", "v", 0).Err())
	b.rdb.LPush(t.Context(), "text", "x") // WRONGTYPE
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	b.rdb.Get(gone, "text")
	late, done := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer done()
	b.rdb.Get(late, "text")
	b.server.Close()
	b.rdb.Get(t.Context(), "text")
	for _, reason := range []string{"reply", "caller", "timeout", "network"} {
		if n := b.value(t, "sandfarm_redis_errors_total", reason); n != 1 {
			t.Errorf("%v errors of reason %s, want 1", n, reason)
		}
	}
}

// answers is a collector that answers each request with the next status, and records what it accepted.
type answers struct {
	mu       sync.Mutex
	statuses []int
	paths    []string
	spans    []string
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	status := http.StatusOK
	if len(a.statuses) > 0 {
		status, a.statuses = a.statuses[0], a.statuses[1:]
	}
	a.paths = append(a.paths, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type"))
	if status == http.StatusOK {
		a.take(r)
	}
	w.WriteHeader(status)
}

func (a *answers) take(r *http.Request) {
	unpacked, err := gzip.NewReader(r.Body)
	if err != nil {
		return
	}
	body, _ := io.ReadAll(unpacked)
	var request collectorpb.ExportTraceServiceRequest
	if proto.Unmarshal(body, &request) != nil {
		return
	}
	for _, resource := range request.GetResourceSpans() {
		name := ""
		for _, attribute := range resource.GetResource().GetAttributes() {
			if attribute.GetKey() == "service.name" {
				name = attribute.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				a.spans = append(a.spans, name+" "+span.GetName())
			}
		}
	}
}

// A collector can decode the spans. A busy collector gets a retry; one that refuses does not.
func TestSpansReachACollector(t *testing.T) {
	t.Parallel()
	const line = "POST /v1/traces application/x-protobuf"
	for _, c := range []struct {
		name     string
		statuses []int
		requests []string
		spans    []string
	}{
		{"Takes", nil, []string{line}, []string{"sandfarm-test work"}},
		{"Busy", []int{http.StatusServiceUnavailable, http.StatusTooManyRequests}, []string{line, line, line}, []string{"sandfarm-test work"}},
		{"Refuses", []int{http.StatusBadRequest}, []string{line}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := &answers{statuses: c.statuses}
			server := httptest.NewServer(a)
			defer server.Close()
			provider, err := telemetry.NewTracing(t.Context(), server.URL, "test", "v1")
			testbed.Must(t, err)
			_, span := provider.Tracer("t").Start(t.Context(), "work")
			span.End()
			if err := provider.Shutdown(t.Context()); err != nil {
				t.Logf("Shutdown: %v", err)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			testbed.Diff(t, "requests", c.requests, a.paths)
			testbed.Diff(t, "spans", c.spans, a.spans)
		})
	}
}
