//go:build integration

package dispatch_test

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestModelAfterMigration: records that an older release left behind satisfy the model once they are migrated, and all of their unfinished jobs
// come to their end.
func TestModelAfterMigration(t *testing.T) {
	t.Parallel()
	dump, err := storetest.LoadDump("../store/testdata/schema0.json")
	if err != nil {
		t.Fatal(err)
	}
	for tenant, unfinished := range map[string]int{"acme": 10, "globex": 1, "initech": 10} {
		t.Run(tenant, func(t *testing.T) {
			t.Parallel()
			server, crash := testbed.NewRedis(t), &testbed.Crasher{}
			rdb := server.Client(t)
			w := &world{t: t, rdb: rdb, server: rdb, crash: crash, limits: farm.DefaultLimits(), running: map[string]map[string]int{}, owner: map[string]string{}}
			w.tenant = tenant
			w.clock = time.Date(2026, 11, 22, 13, 0, 0, 0, time.UTC)
			w.must(dump.Restore(t.Context(), rdb))
			w.start()
			if from, err := w.store.Migrate(t.Context()); err != nil || from != 0 {
				t.Fatalf("Migrate = from %d, %v", from, err)
			}
			w.now = w.read()
			n := 0
			for _, j := range w.now.Jobs {
				if !j.State.Final() {
					n++
				}
			}
			if n != unfinished {
				t.Errorf("%d jobs are unfinished after the migration, want %d", n, unfinished)
			}
			w.accept("the migration", w.now)
			w.settle()
		})
	}
}
