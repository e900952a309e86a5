package store_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOnMiniredis(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) redis.UniversalClient {
		t.Helper()
		return client(t, miniredis.RunT(t).Addr())
	})
}

func client(t *testing.T, addr string) redis.UniversalClient {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestRedisDownIsUnavailable(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	s := store.New(client(t, server.Addr()), storetest.NoTasks, store.Options{})
	t.Cleanup(func() { _ = s.Close() })
	server.Close()
	ctx, ref := t.Context(), farm.Ref{Tenant: "acme", ID: "job_x"}
	for name, call := range map[string]func() error{
		"Ping":   func() error { return s.Ping(ctx) },
		"Accept": func() error { _, err := s.Accept(ctx, storetest.Create()); return err },
		"Job":    func() error { _, err := s.Job(ctx, ref); return err },
		"Claim":  func() error { _, err := s.Claim(ctx, ref, "w"); return err },
		"Watch":  func() error { _, err := s.Watch(ctx, "job_x"); return err },
		"Jobs":   func() error { _, _, err := s.Jobs(ctx, "acme", store.JobFilter{}, store.Page{}); return err },
		"Lock":   func() error { _, err := s.Lock(ctx, "l", "o", 1e9); return err },
	} {
		if err := call(); farm.CodeOf(err) != farm.CodeUnavailable {
			t.Errorf("%s = %v, code %q; want unavailable", name, err, farm.CodeOf(err))
		}
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Accept(ctx, storetest.Create()); err != nil {
		t.Errorf("Accept after Redis came back = %v", err)
	}
	if w, err := s.Watch(ctx, "job_x"); err != nil {
		t.Errorf("Watch after Redis came back = %v", err)
	} else {
		w.Close()
	}
}
