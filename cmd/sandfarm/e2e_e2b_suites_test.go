//go:build integration && suites

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestE2BSuites runs the test suites of E2B's SDKs, from clones of their repositories, and fails if less than 95 % of the tests that can apply pass.
// E2B_ONLY names suites, separated by spaces; without it all run.
func TestE2BSuites(t *testing.T) {
	source := os.Getenv("E2B_SOURCE")
	if source == "" {
		t.Fatal("E2B_SOURCE does not name the folder with the clones E2B and code-interpreter: run `make test-e2b E2B_SOURCE=DIR`")
	}
	cache, err := os.UserCacheDir()
	testbed.Must(t, err)
	f := newFarm(t)
	args := []string{"../../deploy/e2b/suites/run.py", "--source", source, "--work", filepath.Join(cache, "sandfarm", "e2b-suites")}
	if only := os.Getenv("E2B_ONLY"); only != "" {
		args = append(append(args, "--only"), strings.Fields(only)...)
	}
	run := exec.CommandContext(t.Context(), "python3", args...)
	run.Env = append(os.Environ(), "E2B_API_URL="+f.url+"/e2b", "E2B_SANDBOX_URL="+f.url+"/e2b", "E2B_API_KEY=e2b_"+strings.Repeat("0", 40))
	run.Stdout, run.Stderr = os.Stdout, os.Stderr
	testbed.Must(t, run.Run())
}

// TestE2BOfAYearAgo uses a farm by the SDKs of a year ago, which callers have pinned. Their code interpreters do not read E2B_SANDBOX_URL: they
// need a farm with a domain and TLS (E2B_DOMAIN), and are not tried here.
func TestE2BOfAYearAgo(t *testing.T) {
	t.Parallel()
	byE2B(t, "SANDFARM_TEST_E2B_BEFORE", "e2b-before", "[cfs][odi]*") // commands, control, files, sdk
}
