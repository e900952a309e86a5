package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// installed are the packages of the one sandbox of a test.
type installed struct {
	mu   sync.Mutex
	list []farm.Package
}

func (i *installed) set(list ...farm.Package) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.list = list
}

func (i *installed) all() []farm.Package {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.list
}

// install is a fake installer: "slow" waits for the gate, "missing" is not in the index.
func (w *fakeWorker) install(ctx context.Context, claim *store.Claim) *farm.Result {
	result := &farm.InstallResult{}
	for _, p := range claim.Request.Install.Packages {
		name, _ := farm.RequirementName(claim.Request.Install.Manager, p)
		outcome := farm.PackageOutcome{Name: name, Requested: p, Version: "1.0", Status: farm.PackageInstalled}
		switch name {
		case "slow":
			select {
			case <-w.gate:
			case <-ctx.Done():
			}
		case "missing":
			outcome = farm.PackageOutcome{Name: name, Requested: p, Status: farm.PackageFailed, Message: "missing is not in the package index."}
		}
		result.Packages = append(result.Packages, outcome)
	}
	return &farm.Result{Install: result}
}

func TestInstallThenPoll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := "/v1/sandboxes/" + b.sandbox() + "/packages"
	b.worker.have.set(farm.Package{Name: "numpy", Version: "2.3", Manager: "pip"})

	job := get[wire.Job](b, http.StatusAccepted, "POST", box, `{"packages":["Slow","missing"]}`)
	testbed.Diff(t, "kind", "install", job.Kind)
	for _, spelling := range []string{"slow", "SLOW"} {
		p := get[wire.Package](b, http.StatusOK, "GET", box+"/"+spelling, nil)
		if p.Status != "installing" || p.JobID != job.ID || p.Name != "slow" || p.Message == "" {
			t.Errorf("right after 202: %+v", p)
		}
	}
	close(b.worker.gate)
	done := get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+job.ID+"?wait=20", nil)
	want := []wire.InstalledOne{
		{Name: "slow", Requested: "Slow", Version: "1.0", Status: "installed"},
		{Name: "missing", Requested: "missing", Status: "failed", Message: "missing is not in the package index."},
	}
	testbed.Diff(t, "result", want, done.Result.Install.Packages)
	b.worker.have.set(farm.Package{Name: "numpy", Version: "2.3", Manager: "pip"}, farm.Package{Name: "slow", Version: "1.1", Manager: "pip"})
	for name, want := range map[string]wire.Package{
		"slow":    {Name: "slow", Status: "installed", Version: "1.1", JobID: job.ID, Manager: "pip"},
		"missing": {Name: "missing", Status: "failed", JobID: job.ID, Message: "missing is not in the package index.", Manager: "pip"},
		"numpy":   {Name: "numpy", Status: "installed", Version: "2.3", Manager: "pip"},
	} {
		testbed.Diff(t, name, want, get[wire.Package](b, http.StatusOK, "GET", box+"/"+name, nil))
	}
	if p := get[wire.Package](b, http.StatusOK, "GET", box+"/nobody-asked", nil); p.Status != "not_found" || p.Message == "" {
		t.Errorf("never asked for: %+v", p)
	}
	var listed []string
	for _, p := range get[wire.Items[wire.Package]](b, http.StatusOK, "GET", box, nil).Items {
		listed = append(listed, p.Name+" "+p.Status+" "+p.Version)
	}
	testbed.Diff(t, "list", []string{"missing failed ", "numpy installed 2.3", "slow installed 1.1"}, listed)
	b.worker.have.set(farm.Package{Name: "missing", Version: "0.9", Manager: "pip"}) // an earlier version, which the failed install left
	list := get[wire.Items[wire.Package]](b, http.StatusOK, "GET", box, nil).Items
	for _, p := range append(list[:1:1], get[wire.Package](b, http.StatusOK, "GET", box+"/missing", nil)) {
		if p.Name != "missing" || p.Status != "failed" || p.Version != "0.9" || p.Message == "" {
			t.Errorf("an installed package whose last install failed: %+v", p)
		}
	}

	b.worker.have.set() // removed by a command
	if p := get[wire.Package](b, http.StatusOK, "GET", box+"/slow", nil); p.Status != "not_found" {
		t.Errorf("removed: %+v", p)
	}
}

// A call of a tool that names up to a hundred packages looks into the sandbox once. It made a job for each name, and two where npm may have it.
func TestManyPackagesAreLookedUpAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	b.worker.have.set(farm.Package{Name: "numpy", Version: "2.3", Manager: "pip"}, farm.Package{Name: "left-pad", Version: "1.3", Manager: "npm"})
	in := map[string]any{"sandbox_id": box, "package_names": []string{"numpy", "left-pad", "nothing"}}
	type status struct{ Installed bool }
	for i, c := range []struct {
		name string
		call func() map[string]status
		want map[string]status
	}{
		{"mcp", func() (found map[string]status) {
			text, err := json.Marshal(b.tool("check_packages_installation_status", in).Result.StructuredContent["packages"])
			testbed.Must(t, err)
			testbed.Must(t, json.Unmarshal(text, &found))
			return found
		}, map[string]status{"numpy": {true}, "left-pad": {true}, "nothing": {}}},
		{"toolset", func() map[string]status {
			return get[struct{ Packages map[string]status }](b, http.StatusOK, "POST", "/mcp/tools/check_packages_installation_status", in).Packages
		}, map[string]status{"numpy": {true}, "left-pad": {}, "nothing": {}}},
	} {
		testbed.Diff(t, c.name, c.want, c.call())
		testbed.Diff(t, c.name+": looks into the sandbox", int32(i+1), b.worker.looks.Load())
	}
}

func TestPackagesOfNpm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := "/v1/sandboxes/" + b.sandbox() + "/packages"
	get[wire.Job](b, http.StatusOK, "POST", box+"?wait=20", `{"packages":["@types/node@20","six"],"manager":"npm"}`)
	b.worker.have.set(farm.Package{Name: "@types/node", Version: "20.1.0", Manager: "npm"}, farm.Package{Name: "six", Version: "1", Manager: "npm"})
	if p := get[wire.Package](b, http.StatusOK, "GET", box+"/@types%2Fnode", nil); p.Status != "installed" || p.Version != "20.1.0" {
		t.Errorf("%+v", p)
	}
	if p := get[wire.Package](b, http.StatusOK, "GET", box+"/six", nil); p.Status != "not_found" {
		t.Errorf("pip's six: %+v", p)
	}
	if p := get[wire.Package](b, http.StatusOK, "GET", box+"/six?manager=npm", nil); p.Status != "installed" {
		t.Errorf("npm's six: %+v", p)
	}
}

func TestPackagesOfCreateAndRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := get[wire.Created](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", `{"packages":["six","missing"]}`)
	if made.Job.Result.Install == nil || len(made.Job.Result.Install.Packages) != 2 {
		t.Fatalf("result of create: %+v", made.Job.Result)
	}
	if p := get[wire.Package](b, http.StatusOK, "GET", "/v1/sandboxes/"+made.Sandbox.ID+"/packages/missing", nil); p.Status != "failed" || p.JobID != made.Job.ID {
		t.Errorf("%+v", p)
	}
}

func TestAnInstallThatEndsOtherwise(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := "/v1/sandboxes/" + b.sandbox()
	get[wire.Job](b, http.StatusAccepted, "POST", box+"/execute", `{"code":"block"}`)
	job := get[wire.Job](b, http.StatusAccepted, "POST", box+"/packages", `{"packages":["six"]}`)
	get[wire.Job](b, http.StatusOK, "DELETE", "/v1/jobs/"+job.ID+"?wait=5", nil)
	if p := get[wire.Package](b, http.StatusOK, "GET", box+"/packages/six", nil); p.Status != "failed" || !strings.Contains(p.Message, "canceled") {
		t.Errorf("%+v", p)
	}
	close(b.worker.gate)
}

func TestPackagesOfASandboxThatHasEnded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.sandbox()
	box := "/v1/sandboxes/" + id + "/packages"
	get[wire.Job](b, http.StatusOK, "POST", box+"?wait=20", `{"packages":["six","missing"]}`)
	get[wire.Job](b, http.StatusOK, "DELETE", "/v1/sandboxes/"+id+"?wait=20", nil)
	gone := "The sandbox " + id + " is closed, and its packages are gone. Create a new sandbox."
	for name, want := range map[string][2]string{
		"six": {"installed", gone}, "missing": {"failed", "missing is not in the package index. " + gone}, "numpy": {"not_found", gone},
	} {
		if p := get[wire.Package](b, http.StatusOK, "GET", box+"/"+name, nil); p.Status != want[0] || p.Message != want[1] {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

func TestPackageLimits(t *testing.T) {
	t.Parallel()
	limits := farm.DefaultLimits()
	b := setup(t)
	box := "/v1/sandboxes/" + b.sandbox() + "/packages"
	for n, status := range map[int]int{limits.MaxPackages - 1: 202, limits.MaxPackages: 202, limits.MaxPackages + 1: 422, 10_000: 422} {
		body := map[string]any{"packages": names(n)}
		if answer, text := b.do("POST", box, body, "Content-Type", "application/json"); answer.StatusCode != status {
			t.Errorf("%d packages: %d %.200s", n, answer.StatusCode, text)
		}
	}
	for n, status := range map[int]int{limits.MaxPackageBytes - 1: 202, limits.MaxPackageBytes: 202, limits.MaxPackageBytes + 1: 422, 1 << 20: 422} {
		body := map[string]any{"packages": []string{strings.Repeat("x", n)}}
		answer, text := b.do("POST", box, body, "Content-Type", "application/json")
		if answer.StatusCode != status || len(text) > 2000 {
			t.Errorf("a name of %d bytes: %d %.200s", n, answer.StatusCode, text)
		}
	}
}

func names(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("p%d", i)
	}
	return list
}

func TestBadNamesOfPackages(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	mine := "/v1/sandboxes/" + b.sandbox("X-API-Key", key) + "/packages"
	for _, name := range []string{"--index-url=x", "six==1", "a%20b", "..%2Fx", "%00", strings.Repeat("x", 300), ""} {
		b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "GET", mine+"/"+name, nil, "X-API-Key", key)
	}
	b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "GET", mine+"/six?manager=apt", nil, "X-API-Key", key)
	for _, target := range []string{mine, mine + "/six"} {
		b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", target, nil, "X-API-Key", otherKey)
	}
	b.problem(farm.CodeNotFound, http.StatusNotFound, "POST", mine, `{"packages":["six"]}`, "X-API-Key", otherKey, "Content-Type", "application/json")
}
