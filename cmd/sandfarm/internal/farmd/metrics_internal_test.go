package farmd

import (
	"fmt"
	"log/slog"
	"net/http"
	"testing"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestMaxMemoryOfRedis(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct {
		setting int
		limits  budget.Limits
		want    int64
	}{
		{0, budget.Limits{}, 0},
		{0, budget.Limits{Machine: 4096 * mib}, 1024 * mib},
		{0, budget.Limits{Machine: 4096 * mib, Process: 100 * mib}, 1024 * mib},
		{0, budget.Limits{Machine: 4096 * mib, Group: 1024 * mib, Process: 900 * mib}, 256 * mib},
		{0, budget.Limits{Machine: 8192 * mib}, 2048 * mib},
		{0, budget.Limits{Machine: 64 << 30}, 2048 * mib},
		{5000, budget.Limits{Machine: 64 << 30}, 5000 * mib},
	} {
		if got := (RedisSettings{MaxMemory: c.setting}).maxMemory(c.limits); got != c.want {
			t.Errorf("max_memory_mb %d, %+v: %d MiB, want %d", c.setting, c.limits, got/mib, c.want/mib)
		}
	}
}

// A web page that points its own name at this machine must not read the metrics.
func TestMetricsAreShownUnderTrustedNamesOnly(t *testing.T) {
	t.Parallel()
	counted, err := newMetrics("test", "v1")
	testbed.Must(t, err)
	p := &Parts{
		Settings: &Settings{Metrics: MetricsSettings{Listen: "127.0.0.1:0"}, API: api.Config{TrustedHosts: []string{"farm.example.com"}}},
		Log:      slog.New(slog.DiscardHandler), metrics: counted,
	}
	server, err := p.showMetrics(t.Context(), "")
	testbed.Must(t, err)
	defer server.Stop()
	for host, want := range map[string]int{
		server.Addr(): http.StatusOK, "localhost": http.StatusOK, "farm.example.com:9101": http.StatusOK, "": http.StatusOK,
		"evil.example.com": http.StatusForbidden, "evil.example.com:8002": http.StatusForbidden,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Addr()+"/metrics", nil)
		testbed.Must(t, err)
		r.Host = host
		answer, err := http.DefaultClient.Do(r)
		testbed.Must(t, err)
		_ = answer.Body.Close()
		testbed.Diff(t, fmt.Sprintf("Host %q: status", host), want, answer.StatusCode)
	}
}
