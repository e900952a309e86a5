//go:build integration

package difftest_test

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
)

// The programs of testdata do in our kernel what they do in ipykernel, except for what is listed.
func TestKernelBehavesLikeIPykernel(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join("testdata", "*.ipy"))
	if err != nil {
		t.Fatal(err)
	}
	listed, err := differences(pythonMinor(t))
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := startOurs(t), startReference(t)
	for _, path := range paths {
		for _, p := range readPrograms(t, path) {
			t.Run(p.Name, func(t *testing.T) { // one at a time: there is one kernel of each kind
				type result struct {
					cells []cell
					err   error
				}
				got := make(chan result, 1)
				go func() {
					cells, err := theirs.run(p)
					got <- result{cells, err}
				}()
				mine, err := ours.run(t.Context(), p)
				their := <-got
				if err != nil {
					t.Fatalf("our kernel: %v", err)
				}
				if their.err != nil {
					t.Fatalf("ipykernel: %v", their.err)
				}
				for _, wrong := range verdicts(listed[p.Name], compare(mine, their.cells)) {
					t.Error(wrong)
				}
			})
		}
	}
}

// pythonMinor returns the minor version of the Python that both kernels run with. Where the image's Python cannot be had, it is an older one.
func pythonMinor(t *testing.T) int {
	t.Helper()
	python := filepath.Join(strings.SplitN(agenttest.KernelPath(t), ":", 2)[0], "python3")
	out, err := exec.CommandContext(t.Context(), python, "-c", "import sys; print(sys.version_info.minor)").Output() //nolint:gosec // of the tests
	agenttest.Must(t, err)
	minor, err := strconv.Atoi(strings.TrimSpace(string(out)))
	agenttest.Must(t, err)
	return minor
}
