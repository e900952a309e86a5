package farmd

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/telemetry"
)

// TraceSettings name the collector of traces.
type TraceSettings struct {
	OTLPEndpoint string `toml:"otlp_endpoint" doc:"URL of an OpenTelemetry collector that takes OTLP over HTTP, such as http://127.0.0.1:4318. Empty: no tracing."`
}

// validate checks the endpoint: the exporter does not report an unusable one.
func (t TraceSettings) validate() error {
	if t.OTLPEndpoint == "" {
		return nil
	}
	u, err := url.Parse(t.OTLPEndpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("telemetry.otlp_endpoint is not valid: it must have the form http://127.0.0.1:4318")
	}
	return nil
}

// flushTimeout bounds the export of the last spans, so that a collector that is down does not delay the stop.
const flushTimeout = 3 * time.Second

// openTracing starts the export of spans, if the settings name a collector.
func (p *Parts) openTracing(ctx context.Context) error {
	if p.Settings.Telemetry.OTLPEndpoint == "" {
		return nil
	}
	provider, err := telemetry.NewTracing(ctx, strings.TrimSuffix(p.Settings.Telemetry.OTLPEndpoint, "/"), p.metrics.service, p.metrics.version)
	if err != nil {
		return err
	}
	p.tracer = provider
	p.closers = append(p.closers, func() error {
		ctx, done := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer done()
		if err := provider.Shutdown(ctx); err != nil {
			p.Log.WarnContext(ctx, "did not export the last spans", "error", err)
		}
		return nil
	})
	return nil
}
