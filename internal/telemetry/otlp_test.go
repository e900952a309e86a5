package telemetry_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sandfarm/sandfarm/internal/telemetry"
)

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
			if err != nil {
				t.Fatalf("NewTracing: %v", err)
			}
			_, span := provider.Tracer("t").Start(t.Context(), "work")
			span.End()
			if err := provider.Shutdown(t.Context()); err != nil {
				t.Logf("Shutdown: %v", err)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if diff := cmp.Diff(c.requests, a.paths); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.spans, a.spans); diff != "" {
				t.Errorf("spans (-want +got):\n%s", diff)
			}
		})
	}
}
