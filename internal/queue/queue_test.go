package queue_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOnMiniredis(t *testing.T) {
	t.Parallel()
	runSuite(t, func(t *testing.T) func() redis.UniversalClient {
		t.Helper()
		addr := miniredis.RunT(t).Addr()
		return func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: addr}) }
	})
}
