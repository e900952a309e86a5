package farmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/scheduler"
)

// healthTimeout bounds a look at a service: one that takes longer does not do its work.
const healthTimeout = 5 * time.Second

// Health is nil when the service of this name, started on this host with these settings, does its work: the API answers
// /healthz; the worker renews its heartbeat; some scheduler leads.
func Health(ctx context.Context, s *Settings, service string) error {
	ctx, done := context.WithTimeout(ctx, healthTimeout)
	defer done()
	switch service {
	case "api":
		return apiHealth(ctx, s.API.Listen)
	case "worker":
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find name of host: %w", err)
		}
		return withStore(s, func(st *store.Store) error { return workerHealth(ctx, st, host) })
	case "scheduler":
		return withStore(s, func(st *store.Store) error {
			held, err := st.LockTaken(ctx, scheduler.LockName)
			if err == nil && !held {
				err = errors.New("no scheduler leads")
			}
			return err
		})
	default:
		return fmt.Errorf("there is no service %q: name api, worker or scheduler", service)
	}
}

// apiHealth asks the API on this host's loopback, whatever address it listens on beside that.
func apiHealth(ctx context.Context, listen string) error {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("read api.listen: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/healthz", nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	resp, err := (&http.Client{}).Do(req)
	if err != nil {
		return fmt.Errorf("ask the API: %w", err)
	}
	if err := resp.Body.Close(); err != nil {
		return fmt.Errorf("ask the API: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the API answers %s", resp.Status)
	}
	return nil
}

// workerHealth looks for a live worker of this host.
func workerHealth(ctx context.Context, st *store.Store, host string) error {
	workers, err := st.Workers(ctx)
	if err != nil {
		return err
	}
	for _, w := range workers {
		if w.Host == host {
			return nil
		}
	}
	return farm.NotFoundf("no live worker is on %s", host)
}

// withStore opens the records alone: a look every few seconds must not open all that a service needs.
func withStore(s *Settings, look func(*store.Store) error) error {
	if s.Redis.URL == "" {
		return errors.New("redis.url is not set (SANDFARM_REDIS_URL): the service's records cannot be seen")
	}
	options, err := redis.ParseURL(s.Redis.URL)
	if err != nil {
		return errBadRedisURL
	}
	rdb := redis.NewClient(hasty(options))
	st := store.New(rdb, store.Options{Limits: s.Limits, Logger: s.Log.logger()})
	return errors.Join(look(st), st.Close(), rdb.Close())
}
