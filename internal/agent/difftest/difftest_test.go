//go:build integration

package difftest_test

import (
	"path/filepath"
	"testing"
)

// The programs of testdata do in our kernel what they do in ipykernel, except for what is listed.
func TestKernelBehavesLikeIPykernel(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join("testdata", "*.ipy"))
	if err != nil {
		t.Fatal(err)
	}
	listed, err := differences()
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
