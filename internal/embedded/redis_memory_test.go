package embedded_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/embedded"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func startRedis(t *testing.T, dir string) *embedded.Redis {
	t.Helper()
	r, err := embedded.StartRedis(t.Context(), embedded.RedisConfig{Dir: dir, Logger: quiet()})
	testbed.Must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func client(t *testing.T, r *embedded.Redis) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Network: r.Network(), Addr: r.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestWithoutRedisServerAnInProcessServerIsUsed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := t.TempDir()
	r := startRedis(t, dir)
	if r.Persistent() {
		t.Error("Persistent = true, want false")
	}
	c := client(t, r)
	testbed.Must(t, c.Set(t.Context(), "k", "v", 0).Err())
	if got, err := c.Get(t.Context(), "k").Result(); err != nil || got != "v" {
		t.Errorf("Get = %q, %v", got, err)
	}
	testbed.Must(t, c.Set(t.Context(), "short", "v", 200*time.Millisecond).Err())
	testbed.Until(t, "key expires", func() bool { return c.Exists(t.Context(), "short").Val() == 0 })
	_, err := embedded.StartRedis(t.Context(), embedded.RedisConfig{Dir: dir, Logger: quiet()})
	if err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("StartRedis on a folder in use = %v, want a refusal", err)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Error("Ping after Close = nil, want an error")
	}
	startRedis(t, dir)
}

func TestRedisRefusesWrongConfig(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]embedded.RedisConfig{
		"NoDir":    {},
		"NoBinary": {Dir: t.TempDir(), Binary: "/no/such/redis-server"},
		"Exits":    {Dir: t.TempDir(), Binary: "/bin/false"},
	} {
		cfg.Logger = quiet()
		r, err := embedded.StartRedis(t.Context(), cfg)
		if err == nil {
			_ = r.Close()
			t.Errorf("StartRedis with %s = nil, want an error", name)
		}
	}
}
