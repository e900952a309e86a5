package engine

import (
	"slices"
	"testing"

	"github.com/docker/docker/api/types/system"
)

// An engine that cannot limit one of these must not be used.
func TestEngineWithoutLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		info system.Info
		want []string
	}{
		{system.Info{MemoryLimit: true, PidsLimit: true, CPUCfsQuota: true}, nil},
		{system.Info{PidsLimit: true, CPUCfsQuota: true}, []string{"memory"}},
		{system.Info{MemoryLimit: true, CPUCfsQuota: true}, []string{"processes"}},
		{system.Info{MemoryLimit: true, PidsLimit: true}, []string{"cores"}},
		{system.Info{}, []string{"memory", "processes", "cores"}},
	} {
		if got := missingLimits(c.info); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.info, got, c.want)
		}
	}
}
