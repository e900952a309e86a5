package mcp_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
)

// The status of a package that npm installed used to be not_found always.
func TestTheStatusOfAPackageOfEitherManager(t *testing.T) {
	t.Parallel()
	there := map[string]string{ // manager/name → status
		"pip/numpy": "installed", "npm/left-pad": "installed", "npm/@types/node": "installed", "npm/failing": "failed",
		"pip/both": "installed", "npm/both": "installing",
	}
	for name, test := range map[string]struct {
		name, manager string
		asked         []string
		manages       string
		status        string
	}{
		"Python":          {name: "numpy", asked: []string{"pip/numpy"}, manages: "pip", status: "installed"},
		"PythonNamed":     {name: "numpy", manager: "pip", asked: []string{"pip/numpy"}, manages: "pip", status: "installed"},
		"OnlyPython":      {name: "NumPy", asked: []string{"pip/numpy"}, manages: "pip", status: "installed"},
		"Node":            {name: "left-pad", asked: []string{"pip/left-pad", "npm/left-pad"}, manages: "npm", status: "installed"},
		"NodeNamed":       {name: "left-pad", manager: "npm", asked: []string{"npm/left-pad"}, manages: "npm", status: "installed"},
		"NodeWithVersion": {name: "left-pad@1.3.0", asked: []string{"npm/left-pad"}, manages: "npm", status: "installed"},
		"NodeScope":       {name: "@types/node", asked: []string{"npm/@types/node"}, manages: "npm", status: "installed"},
		"NodeFailed":      {name: "failing", asked: []string{"pip/failing", "npm/failing"}, manages: "npm", status: "failed"},
		"PythonFirst":     {name: "both", asked: []string{"pip/both"}, manages: "pip", status: "installed"},
		"NodeOfTwo":       {name: "both", manager: "npm", asked: []string{"npm/both"}, manages: "npm", status: "installing"},
		"NotInPython":     {name: "left-pad", manager: "pip", asked: []string{"pip/left-pad"}, manages: "pip", status: "not_found"},
		"Neither":         {name: "nothing", asked: []string{"pip/nothing", "npm/nothing"}, manages: "pip", status: "not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked []string
			b := setup(t, &fakeFarm{PackageFunc: func(_ context.Context, _, manager, name string) (wire.Package, error) {
				if name == "NumPy" || name == "numpy" {
					name = "numpy"
				}
				key := manager + "/" + name
				asked = append(asked, key)
				status := there[key]
				if status == "" {
					status = "not_found"
				}
				return wire.Package{Name: name, Status: status, Manager: manager}, nil
			}})
			args := map[string]any{"sandbox_id": "sbx_1", "package_name": test.name}
			if test.manager != "" {
				args["manager"] = test.manager
			}
			r := b.call("check_package_status", args)
			if field(t, r, "status") != test.status || field(t, r, "manager") != test.manages || !slices.Equal(asked, test.asked) {
				t.Errorf("%v, asked for %v", r.StructuredContent, asked)
			}
		})
	}
}

// After the wait the same manager is asked again, for the name alone.
func TestAWaitForANodePackageAsksForItAgain(t *testing.T) {
	t.Parallel()
	var asked []string
	status := "installing"
	f := &fakeFarm{
		PackageFunc: func(_ context.Context, _, manager, name string) (wire.Package, error) {
			asked = append(asked, manager+"/"+name)
			return wire.Package{Name: name, Status: status, Manager: manager, JobID: "job_1"}, nil
		},
		JobFunc: func(context.Context, string, time.Duration) (wire.Job, error) {
			status = "installed"
			return wire.Job{ID: "job_1", State: "completed"}, nil
		},
	}
	b := setup(t, f)
	r := b.call("check_packages_installation_status", map[string]any{"sandbox_id": "sbx_1", "package_names": []string{"left-pad@1.3.0"}, "wait_seconds": 5})
	found, _ := field(t, r, "packages").(map[string]any)["left-pad@1.3.0"].(map[string]any)
	if diff := cmp.Diff([]string{"npm/left-pad", "npm/left-pad"}, asked); diff != "" || found["status"] != "installed" || found["installed"] != true {
		t.Errorf("%s\n%v", diff, found)
	}
	if n := f.lookups.Load(); n != 2 {
		t.Errorf("%d looks, want one before the wait and one after it", n)
	}
}

func TestTheStatusSaysWhatIsInTheSandbox(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]wire.Package{
		"numpy 2.5.5 is installed.": {Status: "installed", Version: "2.5.5"},
		"The install of numpy failed: No version fits. numpy 2.5.5 is still installed.": {Status: "failed", Version: "2.5.5", Message: "No version fits."},
		"The install of numpy failed: No version fits.":                                 {Status: "failed", Message: "No version fits."},
		"numpy was not found. The sandbox sbx_1 is lost, and its packages are gone.":    {Status: "not_found", Message: "The sandbox sbx_1 is lost, and its packages are gone."},
		"numpy was not found. It is not in the sandbox. Install it with install_packages_in_sandbox, manager pip.": {
			Status: "not_found", Message: "It is not in the sandbox. Install it with POST /v1/sandboxes/sbx_1/packages.",
		},
	} {
		p.Name, p.Manager = "numpy", "pip"
		b := setup(t, &fakeFarm{PackageFunc: func(context.Context, string, string, string) (wire.Package, error) { return p, nil }})
		args := map[string]any{"sandbox_id": "sbx_1", "package_name": "numpy", "manager": "pip"}
		if got := textOf(b.call("check_package_status", args)); got != want {
			t.Errorf("want %q, got %q", want, got)
		}
	}
	b := setup(t, &fakeFarm{PackageFunc: func(_ context.Context, _, manager, name string) (wire.Package, error) {
		return wire.Package{Name: name, Manager: manager, Status: "not_found", Message: "Install it with POST /v1/sandboxes/sbx_1/packages."}, nil
	}})
	const module = " If you mean the module sklearn: its package is scikit-learn."
	for name, want := range map[string]bool{"sklearn": true, "scikit-learn": false} {
		if got := textOf(b.call("check_package_status", map[string]any{"sandbox_id": "sbx_1", "package_name": name})); strings.HasSuffix(got, module) != want {
			t.Errorf("%s: %q names the package of a module: want %v", name, got, want)
		}
	}
}
