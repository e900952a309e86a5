package execution

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestMetricsOfUploads(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := newMetrics()
	workertest.Must(t, m.register(registry))
	m.stored(10, nil)
	m.stored(0, workertest.ErrTest)
	families, err := registry.Gather()
	workertest.Must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			name := f.GetName()
			for _, label := range series.GetLabel() {
				name += " " + label.GetValue()
			}
			got[name] = series.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"sandfarm_worker_uploads_total ok": 1, "sandfarm_worker_uploads_total error": 1, "sandfarm_worker_upload_bytes_total": 10,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
