package farm_test

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestIDsAsUUIDs(t *testing.T) {
	t.Parallel()
	id := farm.NewID(farm.SandboxPrefix)
	uuid := farm.UUIDOf(farm.SandboxPrefix, id)
	if len(uuid) != 36 || farm.FromUUID(farm.SandboxPrefix, uuid) != id || farm.FromUUID(farm.SandboxPrefix, strings.ToUpper(uuid)) != id {
		t.Errorf("%s became %s, and that %s", id, uuid, farm.FromUUID(farm.SandboxPrefix, uuid))
	}
	for _, wrong := range []string{"", "x", uuid[1:], uuid + "0", strings.ReplaceAll(uuid, "-", ""), strings.Replace(uuid, "-", "", 1) + "-"} {
		if got := farm.FromUUID(farm.SandboxPrefix, wrong); got != "" {
			t.Errorf("%q is taken for %s", wrong, got)
		}
	}
	if got := farm.UUIDOf(farm.JobPrefix, id); got != "" {
		t.Errorf("the id of a sandbox became that of a job: %s", got)
	}
}
