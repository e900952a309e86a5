package execution

import (
	"context"
	"io"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/telemetry"
)

// metrics count uploads.
type metrics struct {
	uploads     *prometheus.CounterVec
	uploadBytes prometheus.Counter
}

// Outcomes of uploads, as metrics have them.
const (
	outcomeOK    = "ok"
	outcomeError = "error"
)

func newMetrics() *metrics {
	m := &metrics{
		uploads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_worker_uploads_total", Help: "Artifacts sent to the object store, each try, by outcome: ok or error.",
		}, []string{"outcome"}),
		uploadBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sandfarm_worker_upload_bytes_total", Help: "Bytes of artifacts that the object store took.",
		}),
	}
	for _, outcome := range []string{outcomeOK, outcomeError} { // so that rate() counts the first one
		m.uploads.WithLabelValues(outcome)
	}
	return m
}

func (m *metrics) register(to prometheus.Registerer) error {
	if to == nil {
		return nil
	}
	return telemetry.Register(to, m.uploads, m.uploadBytes)
}

// stored counts an artifact that was sent.
func (m *metrics) stored(size int64, err error) {
	if err != nil {
		m.uploads.WithLabelValues(outcomeError).Inc()
		return
	}
	m.uploads.WithLabelValues(outcomeOK).Inc()
	m.uploadBytes.Add(float64(size))
}

// put stores an artifact's bytes, and counts them.
func (x *Runner) put(ctx context.Context, a *farm.Artifact, r io.Reader, size int64) error {
	info, err := x.blobs.Put(ctx, a.Key, r, size, putOptions(a))
	a.Size, a.SHA256 = info.Size, info.SHA256
	x.metrics.stored(info.Size, err)
	return err
}
