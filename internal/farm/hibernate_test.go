package farm_test

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestCannotHibernateNamesTheSetting(t *testing.T) {
	t.Parallel()
	if got := farm.CannotHibernate(&farm.Sandbox{ID: "sbx_x", Runtime: "runc"}).Error(); !strings.Contains(got, `engine.runtime = "runsc" (docs/operations.md)`) {
		t.Error(got)
	}
}
