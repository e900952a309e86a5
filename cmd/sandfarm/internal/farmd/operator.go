package farmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/embedded"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
)

// operatorTimeout bounds the end of an operator's requests.
const operatorTimeout = 5 * time.Second

// Operator connects to the records of the farm of these settings, which must run, and returns a client of an API over them. The API
// listens nowhere, needs no key, and gives the rights of the operator: whoever can open the records could change them anyway. It
// serves what needs nothing but records: keys, tenants, audit, usage.
func Operator(ctx context.Context, s *Settings, version string) (*http.Client, func() error, error) {
	quiet := s.Log
	if quiet.Level == "info" { // the verbs answer on the terminal; the audit has what they do
		quiet.Level = "warn"
	}
	log := quiet.logger()
	p := &Parts{Settings: s}
	if s.Redis.URL == "" {
		socket, err := embedded.RedisSocket(s.path("redis"))
		if err != nil {
			return nil, nil, fmt.Errorf("find Redis of the farm: %w", err)
		}
		p.Redis = &RedisAddress{single: withTimeouts(&redis.Options{Network: "unix", Addr: socket})}
	} else if err := p.openRedis(ctx, false); err != nil {
		return nil, nil, err
	}
	rdb := p.Redis.Open()
	records := store.New(rdb, queue.EnqueueLua(), store.Options{Limits: s.Limits, Logger: log})
	closeRecords := func() error { return errors.Join(records.Close(), rdb.Close()) }
	if err := records.Ping(ctx); err != nil {
		_ = closeRecords()
		if s.Redis.URL == "" {
			return nil, nil, fmt.Errorf("no farm of this machine runs on %s: start it with `sandfarm up`, name its data directory in SANDFARM_DATA, or its Redis in SANDFARM_REDIS_URL", s.Data)
		}
		return nil, nil, errors.New("the Redis of SANDFARM_REDIS_URL (redis.url) does not answer")
	}
	if err := records.CheckSchema(ctx); err != nil {
		return nil, nil, errors.Join(err, closeRecords())
	}
	dispatcher := dispatch.New(records, queue.NewClient(rdb, log), s.Limits, log)
	server, err := api.New(s.API, api.Deps{Submitter: dispatcher, Queues: dispatcher, Store: records, Logger: log, Version: version})
	if err != nil {
		_ = closeRecords()
		return nil, nil, err
	}
	over := newPipes()
	web := &http.Server{Handler: server.Operator(), ReadHeaderTimeout: startTimeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError)}
	served := make(chan struct{})
	go func() { defer close(served); _ = web.Serve(over) }()
	client := &http.Client{Transport: &http.Transport{DialContext: over.dial}}
	return client, func() error {
		client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operatorTimeout)
		defer cancel()
		err := web.Shutdown(ctx) // a request is in the audit at its end, which comes after its answer
		<-served
		server.Stop() // waits until the audit is written
		return errors.Join(err, closeRecords())
	}, nil
}

// pipes is a listener within the process.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept is part of net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close is part of net.Listener. It is called once, by the server.
func (p *pipes) Close() error { close(p.done); return nil }

// Addr is part of net.Listener.
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "operator"} }
