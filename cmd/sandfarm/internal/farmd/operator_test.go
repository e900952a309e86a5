package farmd_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
)

// Verbs with --local print their answers, and no lines of a log.
func TestOperatorLogsNothing(t *testing.T) {
	redis := miniredis.RunT(t)
	t.Setenv("SANDFARM_DATA", t.TempDir())
	t.Setenv("SANDFARM_REDIS_URL", "redis://"+redis.Addr())
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	old := os.Stderr
	os.Stderr = file
	t.Cleanup(func() { os.Stderr = old; _ = file.Close() })
	direct, done, err := farmd.Operator(t.Context(), load(t, ""), "test")
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.DefaultURL, client.WithHTTPClient(direct))
	if err != nil {
		t.Fatal(err)
	}
	cpus := 1.0
	if _, err := c.SetTenant(t.Context(), "acme", wire.TenantRequest{MaxCPUs: &cpus}); err != nil {
		t.Error(err)
	}
	if err := done(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if text, err := os.ReadFile(file.Name()); err != nil || len(text) > 0 {
		t.Errorf("standard error has %q, %v", text, err)
	}
}

// A command with --local where no farm runs has one error, without the lines that the Redis client logs for each try.
func TestLocalWithoutFarmLogsNothing(t *testing.T) {
	t.Setenv("SANDFARM_DATA", t.TempDir())
	t.Setenv("SANDFARM_REDIS_URL", "")
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	old, err := unix.Dup(2) // that client has kept its os.Stderr
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Dup3(int(file.Fd()), 2, 0); err != nil { //nolint:gosec // a descriptor is small
		t.Fatal(err)
	}
	_, _, failed := farmd.Local("test")(t.Context(), "")
	if err := errors.Join(unix.Dup3(old, 2, 0), unix.Close(old)); err != nil {
		t.Fatal(err)
	}
	if failed == nil || !strings.Contains(failed.Error(), "no farm of this machine runs") {
		t.Errorf("Local: %v", failed)
	}
	if text, err := os.ReadFile(file.Name()); err != nil || len(text) > 0 {
		t.Errorf("standard error has %q, %v", text, err)
	}
}

// Who can reach Redis gets in without a key, even if the farm has keys.
func TestOperatorNeedsNoKey(t *testing.T) {
	redis := miniredis.RunT(t)
	t.Setenv("SANDFARM_DATA", t.TempDir())
	t.Setenv("SANDFARM_REDIS_URL", "redis://"+redis.Addr())
	s := load(t, "")
	for range 2 { // the second time the farm has keys
		direct, done, err := farmd.Operator(t.Context(), s, "test")
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.New(client.DefaultURL, client.WithHTTPClient(direct))
		if err != nil {
			t.Fatal(err)
		}
		made, err := c.CreateKey(t.Context(), wire.KeyRequest{Tenant: "ops", Scopes: []string{"admin"}})
		if err != nil || made.Secret == "" {
			t.Errorf("%+v, %v", made, err)
		}
		if err := done(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}
}

func TestOperatorOfNoFarm(t *testing.T) {
	t.Setenv("SANDFARM_DATA", filepath.Join(t.TempDir(), "data"))
	if _, _, err := farmd.Operator(t.Context(), load(t, ""), "test"); err == nil || !strings.Contains(err.Error(), "sandfarm up") {
		t.Errorf("without a farm: %v", err)
	}
}
