package compat

import (
	"fmt"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestHasComparesVersions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status, version, wanted string
		has                     bool
	}{
		{"installed", "2.5.5", "numpy", true},
		{"installed", "2.5.5", "numpy>=1", true},
		{"installed", "2.5.5", "numpy==2.5.5", true},
		{"installed", "2.5", "numpy == 2.5.0", true},
		{"installed", "2.5.5", "numpy==1.0", false},
		{"installed", "2.5.5", "numpy==2.*", true},
		{"installed", "2.5.5", "numpy!=1.0", true},
		{"installed", "2.1.0+cpu", "torch==2.1.0", true},
		{"installed", "2.1.0+cpu", "torch==2.1.0+cu121", false},
		{"installed", "", "numpy==1.0", true}, // the installed version is unknown
		{"failed", "0.9.0", "tabulate", true},
		{"failed", "0.9.0", "tabulate==99999", false},
		{"failed", "", "tabulate", false},
		{"installing", "", "tabulate", false},
		{"not_found", "", "tabulate", false},
	} {
		testbed.Diff(t, fmt.Sprintf("%+v", test), test.has, hasPackage(wire.Package{Status: test.status, Version: test.version}, test.wanted))
	}
}
