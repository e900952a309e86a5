//go:build faults || kubernetes

package faulttest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// newFarm starts a farm of the program that `make build` made.
func newFarm(t *testing.T, cfg faulttest.Config) *faulttest.Farm {
	t.Helper()
	var err error
	if cfg.Program = os.Getenv("SANDFARM_TEST_PROGRAM"); cfg.Program == "" {
		cfg.Program, err = filepath.Abs("../../bin/sandfarm")
		testbed.Must(t, err)
	}
	if cfg.MinIO = os.Getenv("SANDFARM_TEST_MINIO"); cfg.MinIO == "" {
		cache, err := os.UserCacheDir()
		testbed.Must(t, err)
		cfg.MinIO = filepath.Join(cache, "sandfarm", "bin", "minio")
	}
	return faulttest.New(t, cfg)
}

// expireSoon gives a sandbox that is ready the shortest life, however long its start has taken.
func expireSoon(t *testing.T, f *faulttest.Farm, box string) wire.Sandbox {
	t.Helper()
	ttl := farm.DefaultLimits().TTLMinSeconds
	now, err := f.Update(t.Context(), box, wire.UpdateRequest{TTLSeconds: &ttl})
	testbed.Must(t, err)
	return now
}
