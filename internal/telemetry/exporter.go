package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// exportTimeout bounds one export, and the flush at the end of the process.
const exportTimeout = 5 * time.Second

// NewTracing makes the provider of spans that are sent to an OTLP collector over HTTP, such as http://127.0.0.1:4318; each
// export, and Shutdown by its caller, is bounded. Spans wait in memory, are sent in batches, and are dropped when the
// collector is slower than they come. A request is traced if its caller's trace is sampled.
func NewTracing(ctx context.Context, endpoint, service, version string) (*trace.TracerProvider, error) {
	exporter, err := otlptrace.New(ctx, newCollector(endpoint))
	if err != nil {
		return nil, fmt.Errorf("make exporter of traces: %w", err)
	}
	about := resource.NewSchemaless(attribute.String("service.name", "sandfarm-"+service), attribute.String("service.version", version))
	return trace.NewTracerProvider(
		trace.WithBatcher(exporter, trace.WithBatchTimeout(time.Second), trace.WithExportTimeout(exportTimeout)),
		trace.WithResource(about), trace.WithSampler(trace.ParentBased(trace.AlwaysSample())),
	), nil
}

const (
	// exportPause is the wait before the first retry of an export; it doubles.
	exportPause = 200 * time.Millisecond
	// maxRefusal bounds how much of a collector's response is read.
	maxRefusal = 1 << 10
)

// collector sends spans to an OTLP collector over HTTP. OpenTelemetry's own client needs gRPC, which is 98 packages; the message
// has the same bytes without it.
type collector struct {
	url  string
	http *http.Client
}

var _ otlptrace.Client = (*collector)(nil)

func newCollector(endpoint string) *collector {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Minute}
	return &collector{url: endpoint + "/v1/traces", http: &http.Client{Transport: transport, Timeout: exportTimeout}}
}

// Start does nothing: a connection is opened when spans are sent.
func (c *collector) Start(context.Context) error { return nil }

// Stop closes idle connections.
func (c *collector) Stop(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// UploadTraces sends spans. It retries until ctx ends if the collector does not respond or is busy.
func (c *collector) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// TracesData and the request of the trace service are the same on the wire: field 1 holds the spans.
	message, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err = w.Write(message)
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("compress spans: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	for pause := exportPause; ; pause *= 2 {
		again, err := c.post(ctx, packed.Bytes())
		if err == nil || !again {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// post sends one request, and reports whether a retry may succeed.
func (c *collector) post(ctx context.Context, body []byte) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "gzip")
	resp, err := c.http.Do(req)
	if err != nil {
		return true, fmt.Errorf("send spans: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	switch resp.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	return again, errors.Join(fmt.Errorf("send spans: the collector answered %s: %q", resp.Status, answer), err)
}
