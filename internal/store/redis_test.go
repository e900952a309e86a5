//go:build integration

package store_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/redistest"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

func TestOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.New(t)
	storetest.Run(t, func(t *testing.T) redis.UniversalClient {
		t.Helper()
		return server.Client(t)
	})
}

func TestPersistence(t *testing.T) {
	t.Parallel()
	s := store.New(redistest.New(t, "--appendonly", "yes", "--maxmemory-policy", "noeviction").Client(t), store.Options{})
	if aof, policy, err := s.Persistence(t.Context()); err != nil || !aof || policy != "noeviction" {
		t.Errorf("Persistence = %v, %q, %v", aof, policy, err)
	}
}

// TestHeartbeatExpires waits for Redis itself to forget a worker, and lets another one take its job over.
func TestHeartbeatExpires(t *testing.T) {
	t.Parallel()
	s := store.New(redistest.New(t).Client(t), store.Options{})
	ctx := t.Context()
	if err := s.Heartbeat(ctx, farm.Worker{ID: "w1"}); err != nil {
		t.Fatal(err)
	}
	a := storetest.Create()
	if _, err := s.Accept(ctx, a); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(ctx, a.Job.Ref(), "w1"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for {
		alive, err := s.Alive(ctx, "w1")
		if err != nil {
			t.Fatal(err)
		}
		if !alive {
			break
		}
		if time.Since(start) > 2*store.HeartbeatTTL {
			t.Fatal("the worker is alive without heartbeats")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if c, err := s.Claim(ctx, a.Job.Ref(), "w2"); err != nil || c.Job.Attempt != 2 {
		t.Errorf("takeover = %+v, %v", c, err)
	}
}

// TestManyFinishedJobs compares the hot path on an empty Redis and beside 20 000 finished jobs by what it costs Redis, which
// does not depend on the machine's other load.
func TestManyFinishedJobs(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t).Client(t)
	s := store.New(rdb, store.Options{})
	ctx := t.Context()
	box := storetest.Create()
	if _, err := s.Accept(ctx, box); err != nil {
		t.Fatal(err)
	}
	pass := func(n int) {
		for range n {
			a := storetest.Execute(box.Sandbox.ID)
			if _, err := s.Accept(ctx, a); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Claim(ctx, a.Job.Ref(), "w"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Finish(ctx, store.Finish{Ref: a.Job.Ref(), Attempt: 1, State: farm.JobCompleted}); err != nil {
				t.Fatal(err)
			}
		}
	}
	c, err := s.Claim(ctx, box.Job.Ref(), "w")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Finish(ctx, store.Finish{Ref: box.Job.Ref(), Attempt: c.Job.Attempt, State: farm.JobCompleted}); err != nil {
		t.Fatal(err)
	}
	cost := func() time.Duration {
		if err := rdb.ConfigResetStat(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		pass(300)
		info, err := rdb.InfoMap(ctx, "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		return usecPerCall(t, info["Commandstats"]["cmdstat_evalsha"])
	}
	pass(300) // warm
	empty := cost()
	pass(20_000)
	full := cost()
	t.Logf("a script of the hot path costs Redis %v empty, %v beside 20 000 finished jobs", empty, full)
	if full > empty*2 {
		t.Errorf("the hot path costs %v beside finished jobs and %v without", full, empty)
	}
}

func usecPerCall(t *testing.T, stat string) time.Duration {
	t.Helper()
	for field := range strings.SplitSeq(stat, ",") {
		if text, ok := strings.CutPrefix(field, "usec_per_call="); ok {
			usec, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			return time.Duration(usec * float64(time.Microsecond))
		}
	}
	t.Fatalf("no usec_per_call in %q", stat)
	return 0
}

// TestRefusesWhenRedisFillsUp moves Redis's memory limit around what it uses: just above 70 % nothing new is taken in.
func TestRefusesWhenRedisFillsUp(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t, "--maxmemory-policy", "noeviction").Client(t)
	ctx := t.Context()
	first := store.New(rdb, store.Options{})
	a := storetest.Create()
	if _, err := first.Accept(ctx, a); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(ctx, "ballast", strings.Repeat("x", 8<<20), 0).Err(); err != nil { // what the test itself uses is little beside it
		t.Fatal(err)
	}
	for _, c := range []struct {
		percent int
		refused bool
	}{{68, false}, {72, true}, {68, false}} {
		info, err := rdb.InfoMap(ctx, "memory").Result()
		if err != nil {
			t.Fatal(err)
		}
		used, err := strconv.Atoi(info["Memory"]["used_memory"])
		if err != nil {
			t.Fatal(err)
		}
		if err := rdb.ConfigSet(ctx, "maxmemory", strconv.Itoa(used*100/c.percent)).Err(); err != nil {
			t.Fatal(err)
		}
		s := store.New(rdb, store.Options{}) // a fresh look
		if _, err := s.Accept(ctx, storetest.Create()); (farm.CodeOf(err) == farm.CodeExhausted) != c.refused || (err != nil) != c.refused {
			t.Errorf("at %d %% of the memory limit Accept = %v", c.percent, err)
		}
		if _, err := s.Accept(ctx, storetest.CloseJob(a.Sandbox.ID)); err != nil {
			t.Errorf("at %d %% of the memory limit a close was refused: %v", c.percent, err)
		}
	}
}
