package farmd_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
)

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
