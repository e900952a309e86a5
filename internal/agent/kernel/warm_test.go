//go:build integration

package kernel_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// fingerprint prints the state that code finds at its start.
const fingerprint = `import os
print(sorted(globals()), In[:-1], Out, os.getcwd(), sorted(os.environ), os.listdir('.'), get_ipython().history_manager.input_hist_raw[:-1])`

// Preloaded modules are available at once and leave no other trace: no names, no history, no count.
func TestWarmKernelLooksFresh(t *testing.T) {
	t.Parallel()
	cold, warm := agenttest.StartWithKernel(t), agenttest.StartWithKernel(t)
	for _, a := range []*agenttest.Agent{cold, warm} {
		if err := a.StartKernel(t.Context(), "default", "python"); err != nil {
			t.Fatal(err)
		}
	}
	loaded, err := warm.WarmKernel(t.Context(), "default", "numpy", "pandas", "matplotlib.pyplot", "no_such_module_at_all")
	if want := []string{"matplotlib.pyplot", "numpy", "pandas"}; err != nil || !slices.Equal(loaded, want) {
		t.Fatalf("WarmKernel = %v, %v; want %v", loaded, err, want)
	}
	want, got := agenttest.Run(t, cold.Client, agenttest.Code(fingerprint)), agenttest.Run(t, warm.Client, agenttest.Code(fingerprint))
	if strip := func(text string, a *agenttest.Agent) string { return strings.ReplaceAll(text, a.Workspace, "W") }; strip(got.Stdout, warm) != strip(want.Stdout, cold) {
		t.Errorf("a warm kernel prints\n%s\na cold one\n%s", got.Stdout, want.Stdout)
	}
	if got.Stderr != "" || got.Outcome.ExecutionCount != 1 || got.Outcome.Error != nil {
		t.Errorf("first execution = %+v", got)
	}
	for code, stdout := range map[string]string{
		"import sys\nprint(*(n in sys.modules for n in ('numpy', 'pandas', 'matplotlib.pyplot')))": "True True True\n",
		"try:\n    np\nexcept NameError:\n    print('no np')":                                      "no np\n",
	} {
		if ran := agenttest.Run(t, warm.Client, agenttest.Code(code)); ran.Stdout != stdout {
			t.Errorf("%s gives %+v", code, ran)
		}
	}
	plot := agenttest.Run(t, warm.Client, agenttest.Code("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"))
	if len(plot.Displays) != 1 || plot.Displays[0].Data["image/png"] == "" {
		t.Errorf("a plot gives %d displays, %+v", len(plot.Displays), plot.Outcome)
	}
}

func TestWarmRefusesInvalidModuleNames(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	if loaded, err := a.WarmKernel(t.Context(), "default", "numpy"); err != nil || len(loaded) != 0 {
		t.Errorf("without a kernel: %v, %v", loaded, err)
	}
	for _, name := range []string{"", "os;x", "a b", "a..b", "../x"} {
		if _, err := a.WarmKernel(t.Context(), "default", name); farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("module %q: %v", name, err)
		}
	}
	many := slices.Repeat([]string{"numpy"}, 33)
	if _, err := a.WarmKernel(t.Context(), "default", many...); farm.CodeOf(err) != farm.CodeInvalid {
		t.Errorf("33 modules: %v", err)
	}
	if _, err := a.WarmKernel(t.Context(), "default", many[:32]...); err != nil {
		t.Errorf("32 modules: %v", err)
	}
}
