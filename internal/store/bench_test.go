//go:build integration

package store_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// BenchmarkAccept accepts creates, and executions of one sandbox. Beside the time of a call it reports what the script costs Redis
// itself.
func BenchmarkAccept(b *testing.B) {
	for _, c := range []struct {
		name string
		next func(sandbox string) store.Accept
	}{
		{"Create", func(string) store.Accept { return storetest.Create() }},
		{"Execute", storetest.Execute},
	} {
		b.Run(c.name, func(b *testing.B) {
			rdb := testbed.NewRedis(b).Client(b)
			limits := farm.DefaultLimits()
			limits.MaxWaiting, limits.MaxQueued, limits.MaxQueueDepth = 1<<30, 1<<30, 1<<30
			s := store.New(rdb, storetest.NoTasks, store.Options{Limits: limits})
			defer s.Close()
			box := storetest.Create()
			if _, err := s.Accept(b.Context(), box); err != nil {
				b.Fatal(err)
			}
			if err := rdb.ConfigResetStat(b.Context()).Err(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Accept(b.Context(), c.next(box.Sandbox.ID)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(usecPerScript(b, rdb), "redis-µs/op")
		})
	}
}

// usecPerScript is how long Redis took for a call of a script, as it counts itself.
func usecPerScript(b *testing.B, rdb redis.UniversalClient) float64 {
	b.Helper()
	info, err := rdb.InfoMap(b.Context(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(info["Commandstats"]["cmdstat_evalsha"], "usec_per_call=")
	text, _, _ := strings.Cut(rest, ",")
	usec, err := strconv.ParseFloat(text, 64)
	if err != nil {
		b.Fatal(err)
	}
	return usec
}
