package farmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/tracing"
	"github.com/sandfarm/sandfarm/internal/webhook"
)

// openLive makes the API's end of the live path to sandboxes.
func (p *Parts) openLive(ctx context.Context) (*relay.Path, error) {
	own := relay.NewIdentity(relay.IdentityConfig{Source: p.Store, Role: relay.Caller, Log: p.Log})
	if err := own.Refresh(ctx); err != nil {
		return nil, err
	}
	kept, end := context.WithCancel(context.WithoutCancel(ctx))
	path := relay.NewPath(own, p.Store.Workers)
	var keeping sync.WaitGroup
	keeping.Go(func() { own.Keep(kept) })
	p.closers = append(p.closers, func() error {
		end()
		keeping.Wait()
		path.Close()
		return nil
	})
	return path, nil
}

// newAPI makes the API server. data is the data directory that commands on this machine must name; "": none.
func (p *Parts) newAPI(ctx context.Context, version, data string) (*api.Server, error) {
	path, err := p.openLive(ctx)
	if err != nil {
		return nil, err
	}
	return api.New(p.Settings.API, api.Deps{
		Submitter: p.Dispatch, Store: p.Store, Queues: p.Dispatch, Blobs: p.Blobs, Memory: p.Memory, Agents: path.Agent, Logger: p.Log, Version: version, Data: data,
		Registry: p.metrics.registry, Tracer: p.tracer,
	})
}

const (
	downloadConnections = 384 // more than package blob admits at a time
	downloadHeader      = 10 * time.Second
	downloadIdle        = time.Minute
)

// startDownloads passes downloads by links on to the S3 service, where s3.listen says so.
func (p *Parts) startDownloads(ctx context.Context) (*httpserver.Server, error) {
	s := p.Settings.S3
	if s.Endpoint == "" { // the built-in one has this address
		s.Listen = ""
	}
	server := httpserver.New(httpserver.Config{
		Name: "downloads", Listen: s.Listen, MaxConnections: downloadConnections, StopTimeout: api.StopTimeout, Log: p.Log,
		HTTP: &http.Server{Handler: p.Blobs.Downloads(p.links), ReadHeaderTimeout: downloadHeader, IdleTimeout: downloadIdle},
	})
	if err := server.Start(ctx); err != nil {
		return nil, fmt.Errorf("s3.listen (SANDFARM_S3_LISTEN): %w", err)
	}
	return server, nil
}

// RunAPI runs the API alone until ctx ends.
func RunAPI(ctx context.Context, s *Settings, version string) error {
	return withParts(ctx, s, "api", version, func(p *Parts) error {
		server, err := p.newAPI(ctx, version, "")
		if err != nil {
			return err
		}
		metrics, err := p.showMetrics(ctx, metricsDefault)
		if err != nil {
			return err
		}
		defer metrics.Stop()
		defer server.Stop()
		if err := server.Start(ctx); err != nil {
			return err
		}
		downloads, err := p.startDownloads(ctx)
		if err != nil {
			return err
		}
		defer downloads.Stop()
		<-ctx.Done()
		return nil
	})
}

// callback makes the function that delivers the callback of a finished job. A worker calls it from a separate queue, which
// retries after an error, so a receiver that is down gets the callback once it is up again. Without a secret it is nil.
func (p *Parts) callback(secret []byte) func(context.Context, farm.Ref) error {
	if p.Settings.CallbackSecret != "" {
		secret = []byte(p.Settings.CallbackSecret)
	}
	if len(secret) == 0 {
		return nil
	}
	view := service.New(service.Deps{Submitter: p.Dispatch, Store: p.Store, Queues: p.Dispatch, Blobs: p.Blobs, Memory: p.work, Logger: p.Log}, service.Options{Limits: p.Settings.Limits})
	sender := webhook.NewSender(webhook.Policy{AllowPrivate: p.Settings.API.AllowPrivateCallbacks})
	return func(ctx context.Context, ref farm.Ref) error {
		ctx, memory := p.work.With(ctx, ref.Tenant, 0)
		defer memory.Release()
		record, err := p.Store.Job(ctx, ref)
		if farm.CodeOf(err) == farm.CodeNotFound {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read job: %w", err)
		}
		record.Result = nil // the view reads it again
		memory.Release()
		job, err := view.Job(ctx, ref.Tenant, ref.ID, 0)
		if err != nil {
			return fmt.Errorf("read job: %w", err)
		}
		ctx, end := tracing.Begin(tracing.Remote(ctx, record.Trace), p.tracer, "callback", trace.SpanKindClient)
		defer end(nil)
		body, err := farm.Encode(job.Job)
		if err != nil {
			return err
		}
		memory.Keep(int64(len(body))) // while the receiver takes it
		return sender.Post(ctx, record.CallbackURL, ref.ID, webhook.TenantSecret(secret, ref.Tenant), body, time.Now())
	}
}

// CallbackSecret is the signing key of a tenant, in the form that webhook libraries expect. It reads the secret of the farm and never makes one: a
// secret in another directory than the farm's would verify nothing.
func CallbackSecret(s *Settings, tenant string) (string, error) {
	if !farm.ValidTenant(tenant) {
		return "", fmt.Errorf("tenant %q must be "+farm.TenantNames, farm.Shorten(tenant))
	}
	secret := []byte(s.CallbackSecret)
	if len(secret) == 0 {
		kept, err := readBytes(s.path("secret"), secretBytes)
		if errors.Is(err, fs.ErrNotExist) {
			return "", noFarm(s)
		}
		if err != nil {
			return "", err
		}
		secret = kept
	}
	return webhook.FormatSecret(webhook.TenantSecret(secret, tenant)), nil
}
