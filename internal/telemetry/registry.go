package telemetry

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry makes the registry of a process, with metrics of the Go runtime, the process and the build.
func NewRegistry(service, version string) (*prometheus.Registry, error) {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sandfarm_build_info", Help: "Always 1: what runs here, and of which version.",
		ConstLabels: prometheus.Labels{"service": service, "version": version},
	})
	build.Set(1)
	if err := Register(registry, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})); err != nil {
		return nil, err
	}
	return registry, nil
}

// Register registers collectors and joins their errors.
func Register(to prometheus.Registerer, collectors ...prometheus.Collector) error {
	var errs []error
	for _, c := range collectors {
		errs = append(errs, to.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// Seconds are histogram buckets for durations from a millisecond to half an hour.
func Seconds() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
}
