package farmd

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/telemetry"
)

// TraceSettings say where traces go.
type TraceSettings struct {
	OTLPEndpoint string `toml:"otlp_endpoint" doc:"URL of an OpenTelemetry collector that takes OTLP over HTTP, such as http://127.0.0.1:4318. Empty: nothing is traced."`
}

// validate looks at the endpoint: the exporter itself says nothing of one that it cannot use.
func (t TraceSettings) validate() error {
	if t.OTLPEndpoint == "" {
		return nil
	}
	u, err := url.Parse(t.OTLPEndpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("telemetry.otlp_endpoint cannot be read: it must look like http://127.0.0.1:4318")
	}
	return nil
}

// flushTimeout bounds the sending of the last spans: a collector that is down must not hold the stop up.
const flushTimeout = 3 * time.Second

// openTracing makes the provider of spans, where the settings name a collector.
func (p *Parts) openTracing(ctx context.Context) error {
	if p.Settings.Telemetry.OTLPEndpoint == "" {
		return nil
	}
	provider, err := telemetry.NewTracing(ctx, strings.TrimSuffix(p.Settings.Telemetry.OTLPEndpoint, "/"), p.figures.service, p.figures.version)
	if err != nil {
		return err
	}
	p.tracer = provider
	p.closers = append(p.closers, func() error {
		ctx, done := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer done()
		if err := provider.Shutdown(ctx); err != nil {
			p.Log.WarnContext(ctx, "the last spans were not sent", "error", err)
		}
		return nil
	})
	return nil
}
