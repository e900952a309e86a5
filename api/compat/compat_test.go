package compat_test

import (
	"testing"

	"github.com/sandfarm/sandfarm/api/compat"
)

func TestEveryToolsetIsComplete(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, set := range compat.Toolsets() {
		if err := set.Validate(); err != nil {
			t.Error(err)
		}
		if names[set.Name] {
			t.Errorf("two toolsets have the name %s", set.Name)
		}
		names[set.Name] = true
	}
	if !names[compat.Bare] {
		t.Errorf("there is no toolset %s to serve at /sse", compat.Bare)
	}
}
