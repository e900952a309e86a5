//go:build integration

package engine_test

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine"
)

func TestRunningNeedsEveryLabel(t *testing.T) {
	t.Parallel()
	e := setup(t)
	spec := e.spec(t, "wait")
	e.start(t, spec)
	still := e.spec(t, "wait")
	if _, err := e.Create(t.Context(), still); err != nil {
		t.Fatal(err)
	}
	mine := engine.LabelSandbox + "=" + spec.SandboxID
	for name, c := range map[string]struct {
		labels []string
		want   bool
	}{
		"One":        {[]string{mine}, true},
		"Both":       {[]string{mine, engine.LabelRole + "=" + engine.RoleSandbox}, true},
		"OneWrong":   {[]string{mine, engine.LabelRole + "=" + engine.RoleHelper}, false},
		"NotStarted": {[]string{engine.LabelSandbox + "=" + still.SandboxID}, false},
		"None":       {[]string{engine.LabelSandbox + "=sbx_none"}, false},
	} {
		got, err := e.Running(t.Context(), c.labels...)
		if err != nil || got != c.want {
			t.Errorf("%s: %v, error %v; want %v", name, got, err, c.want)
		}
	}
	if _, err := e.Running(t.Context()); err == nil {
		t.Error("no labels: no error, although this matches every container")
	}
}
