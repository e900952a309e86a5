package farmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/scheduler"
)

// healthTimeout bounds a check. A service that takes longer is not healthy.
const healthTimeout = 5 * time.Second

// Health is nil if the named service on this host, with these settings, works: the API answers /healthz, the worker renews its
// heartbeat, some scheduler leads, or the engine answers through the engine proxy.
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
			led, err := st.LockTaken(ctx, scheduler.LockName)
			if err == nil && !led {
				err = errors.New("no scheduler leads")
			}
			return err
		})
	case "engine-proxy":
		return proxyHealth(ctx, s.EngineProxy.Socket)
	default:
		return fmt.Errorf("there is no service %q: name api, worker, scheduler or engine-proxy", service)
	}
}

// apiURL is the address of an API for its own host: over loopback if it listens on all addresses.
func apiURL(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("read api.listen: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port), nil
}

func apiHealth(ctx context.Context, listen string) error {
	url, err := apiURL(listen)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/healthz", nil)
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

// workerHealth looks for a live worker on this host.
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
	return farm.NotFoundf("there is no live worker on %s", host)
}

// withStore opens only the records: a check every few seconds must not open everything that a service needs.
func withStore(s *Settings, look func(*store.Store) error) error {
	if s.Redis.URL == "" {
		url, err := apiURL(s.API.Listen)
		if err != nil {
			return err
		}
		return fmt.Errorf("redis.url is not set (SANDFARM_REDIS_URL): the records of the service cannot be read; of all parts of a farm of sandfarm up ask %s/readyz", url)
	}
	address, err := ParseRedis(s.Redis.URL)
	if err != nil {
		return err
	}
	rdb := address.Open()
	st := store.New(rdb, queue.EnqueueLua(), store.Options{Limits: s.Limits, Logger: s.Log.logger()})
	return errors.Join(look(st), st.Close(), rdb.Close())
}
