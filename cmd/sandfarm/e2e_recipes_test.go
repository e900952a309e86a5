//go:build integration && recipes

package main_test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRecipes runs the recipes of docs/recipes with the real packages and a scripted model.
func TestRecipes(t *testing.T) {
	dev := os.Getenv("SANDFARM_TEST_RECIPES")
	if dev == "" {
		t.Fatal("SANDFARM_TEST_RECIPES does not name the packages of the recipes: run `make test-recipes`")
	}
	f := newFarm(t)
	report := filepath.Join(t.TempDir(), "report.xml")
	s := &pythonSDK{source: absolute(t, "../../examples/python/recipes/tests")}
	out, err := s.run(t, []string{"SANDFARM_URL=" + f.url, "SANDFARM_API_KEY=", "PYTHONPATH=" + absolute(t, "../../sdk/python/src")},
		filepath.Join(dev, "bin", "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", report)
	if err != nil {
		t.Errorf("pytest: %v\n%s", err, out)
	}
	judge(t, report)
}
