package farmd

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/sandfarm/sandfarm/api"
)

// A web page that points its own name at this machine must not read the metrics.
func TestMetricsAreShownUnderTrustedNamesOnly(t *testing.T) {
	t.Parallel()
	counted, err := newMetrics("test", "v1")
	if err != nil {
		t.Fatal(err)
	}
	p := &Parts{
		Settings: &Settings{Metrics: MetricsSettings{Listen: "127.0.0.1:0"}, API: api.Config{TrustedHosts: []string{"farm.example.com"}}},
		Log:      slog.New(slog.DiscardHandler), metrics: counted,
	}
	server, err := p.showMetrics(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	for host, want := range map[string]int{
		server.Addr(): http.StatusOK, "localhost": http.StatusOK, "farm.example.com:9101": http.StatusOK, "": http.StatusOK,
		"evil.example.com": http.StatusForbidden, "evil.example.com:8002": http.StatusForbidden,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Addr()+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("Host %q: status %d, want %d", host, answer.StatusCode, want)
		}
	}
}
