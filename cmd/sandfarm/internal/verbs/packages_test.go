package verbs_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// installs is a script of an install that reports progress and ends with these outcomes.
func installs(packages ...wire.InstalledOne) func(func(string, any), <-chan struct{}) (string, *wire.Result) {
	return func(send func(string, any), _ <-chan struct{}) (string, *wire.Result) {
		send("progress", wire.ProgressData{Message: "resolving"})
		send("progress", wire.ProgressData{Message: "resolving"})
		send("progress", wire.ProgressData{Message: "down\x1b[2Jloading"})
		send("stdout", wire.TextData{Text: "Installed 1 package\n"})
		return "completed", &wire.Result{Install: &wire.InstallResult{Packages: packages, Stdout: "Installed 1 package\n"}}
	}
}

func TestInstallPrintsALineForEachPackage(t *testing.T) {
	t.Parallel()
	good := wire.InstalledOne{Name: "numpy", Requested: "numpy", Version: "2.3.5", Status: "installed"}
	bad := wire.InstalledOne{Requested: "nope==9", Status: "failed", Message: "there is no\nnope"}
	tests := map[string]struct {
		outcomes []wire.InstalledOne
		code     int
		lines    [][]string
		more     string // on stderr, behind the progress
		flags    []string
	}{
		"AllWell":   {[]wire.InstalledOne{good}, 0, [][]string{{"numpy", "installed", "2.3.5", "pip", "-"}}, "", nil},
		"Verbose":   {[]wire.InstalledOne{good}, 0, [][]string{{"numpy", "installed", "2.3.5", "pip", "-"}}, "Installed 1 package\n", []string{"--verbose"}},
		"OneFailed": {[]wire.InstalledOne{good, bad}, 1, [][]string{{"numpy", "installed", "2.3.5", "pip", "-"}, {"nope==9", "failed", "-", "pip", "there", "is", "no", "nope"}}, "sandfarm: \"sandfarm job events job_1\" shows what the installer printed.\n", nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			f.Routes["POST /v1/sandboxes/{id}/packages"] = f.start
			f.Script = installs(test.outcomes...)
			got := f.sandfarm(t.Context(), "", append([]string{"packages", "install", "sbx_1", "numpy", "nope==9"}, test.flags...)...)
			if got.code != test.code || got.stderr != "sandfarm: resolving\nsandfarm: down�[2Jloading\n"+test.more {
				t.Errorf("%+v, want the progress on stderr, %q and the code %d", got, test.more, test.code)
			}
			var lines [][]string
			for _, line := range strings.Split(strings.TrimSpace(got.out), "\n")[1:] {
				lines = append(lines, strings.Fields(line))
			}
			testbed.Diff(t, "lines", test.lines, lines)
			if asked := f.asked()[0]; asked != `POST /v1/sandboxes/sbx_1/packages {"packages":["numpy","nope==9"]}` {
				t.Errorf("asked %s", asked)
			}
		})
	}
}

func TestInstallNamesTheManager(t *testing.T) {
	t.Parallel()
	for manager, args := range map[string][]string{"npm": {"--manager", "npm"}, "pip": nil} {
		f := newFarm(t)
		f.Routes["POST /v1/sandboxes/{id}/packages"] = f.start
		f.Script = installs(wire.InstalledOne{Name: "left-pad", Version: "1.3.0", Status: "installed", Message: "Others are installed with manager npm."})
		got := f.sandfarm(t.Context(), "", append([]string{"packages", "install", "sbx_1", "left-pad"}, args...)...)
		lines := strings.Split(got.out, "\n")
		want := []string{"left-pad", "installed", "1.3.0", manager, "Others", "are", "installed", "with", "--manager", "npm."}
		testbed.Check(t, got.code == 0 && len(lines) == 3 && slices.Equal(strings.Fields(lines[1]), want), "%s: %+v", manager, got)
	}
}

func TestInstallAsJSONPrintsTheJobAlone(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["POST /v1/sandboxes/{id}/packages"] = f.start
	f.Script = installs(wire.InstalledOne{Name: "left-pad", Status: "failed"})
	got := f.sandfarm(t.Context(), "", "packages", "install", "sbx_1", "left-pad", "--manager", "npm", "--json")
	var job wire.Job
	decode(t, got.out, &job)
	if got.code != 1 || got.stderr != "" || job.Result == nil || job.Result.Install == nil || job.Result.Install.Packages[0].Status != "failed" {
		t.Errorf("%+v", got)
	}
	if asked := f.asked()[0]; asked != `POST /v1/sandboxes/sbx_1/packages {"packages":["left-pad"],"manager":"npm"}` {
		t.Errorf("asked %s", asked)
	}
}

func TestPackagesLs(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/sandboxes/sbx_1/packages"] = f.gives(200, wire.Items[wire.Package]{Items: []wire.Package{{Name: "numpy", Status: "installed", Version: "2.3.5", Manager: "pip"}}})
	got := f.sandfarm(t.Context(), "", "packages", "list", "sbx_1")
	lines := strings.Split(got.out, "\n")
	if got.code != 0 || len(lines) != 3 || !slices.Equal(strings.Fields(lines[1]), []string{"numpy", "installed", "2.3.5", "pip", "-"}) {
		t.Errorf("%+v", got)
	}
	got = f.sandfarm(t.Context(), "", "packages", "ls", "sbx_1", "--json")
	var list wire.Items[wire.Package]
	decode(t, got.out, &list)
	if len(list.Items) != 1 || list.Items[0].Version != "2.3.5" {
		t.Errorf("--json printed %s", got.out)
	}
}

func TestPackageStatusExitCodes(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]int{"installed": 0, "installing": 0, "failed": 1, "not_found": 1} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			f.Routes["GET /v1/sandboxes/sbx_1/packages/{name...}"] = func(w http.ResponseWriter, r *http.Request) {
				f.answer(w, 200, wire.Package{Name: r.PathValue("name"), Status: status, JobID: "job_1", Message: "told"})
			}
			got := f.sandfarm(t.Context(), "", "packages", "status", "sbx_1", "@types/node")
			if got.code != want || got.stderr != "" || !strings.Contains(got.out, "@types/node") || !strings.Contains(got.out, "told") {
				t.Errorf("%+v, want the exit code %d", got, want)
			}
		})
	}
}

func TestPackageStatusWaitsForTheInstall(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	statuses := []string{"installing", "installed"}
	f.Routes["GET /v1/sandboxes/sbx_1/packages/torch"] = func(w http.ResponseWriter, _ *http.Request) {
		now := statuses[0]
		statuses = statuses[1:]
		f.answer(w, 200, wire.Package{Name: "torch", Status: now, JobID: "job_1"})
	}
	f.Routes["GET /v1/jobs/job_1"] = f.gives(200, wire.Job{ID: "job_1", State: "completed"})
	got := f.sandfarm(t.Context(), "", "packages", "status", "sbx_1", "torch", "--wait")
	if got.code != 0 || !strings.Contains(got.out, "installed") || len(statuses) != 0 {
		t.Errorf("%+v", got)
	}
	want := []string{"GET /v1/sandboxes/sbx_1/packages/torch", "GET /v1/jobs/job_1?wait=30", "GET /v1/sandboxes/sbx_1/packages/torch"}
	testbed.Diff(t, "requests", want, f.asked())
}

func TestRunInstallsPackagesFirst(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		want []string // requests that start work
	}{
		"Fresh": {[]string{"--memory", "1g", "--timeout", "1m"}, []string{
			`POST /v1/sandboxes {"resources":{"memory_mb":1024},"ttl_seconds":1860,"idle_seconds":0}`,
			`POST /v1/sandboxes/sbx_1/packages {"packages":["six","numpy\u003e=2"]}`, `POST /v1/sandboxes/sbx_1/execute {"code":"1","timeout_seconds":60,"auto_install":true}`, `DELETE /v1/sandboxes/sbx_1`,
		}},
		"InASandbox":  {[]string{"--sandbox", "sbx_1"}, []string{`POST /v1/sandboxes/sbx_1/packages {"packages":["six","numpy\u003e=2"]}`, `POST /v1/sandboxes/sbx_1/execute {"code":"1","auto_install":true}`}},
		"WhereItFits": {[]string{"--context", "b", "-s", "sbx_1"}, []string{`POST /v1/sandboxes/sbx_1/packages {"packages":["six","numpy\u003e=2"]}`, `POST /v1/sandboxes/sbx_1/execute {"code":"1","context":"b","auto_install":true}`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			done := wire.Job{ID: "job_2", State: "completed", Result: &wire.Result{Install: &wire.InstallResult{Packages: []wire.InstalledOne{{Name: "six", Status: "installed"}}}}}
			f.Routes["POST /v1/sandboxes/{id}/packages"] = f.gives(http.StatusOK, done)
			f.Routes["POST /v1/sandboxes"] = f.gives(http.StatusAccepted, wire.Created{Sandbox: wire.Sandbox{ID: "sbx_1"}, Job: done})
			f.Routes["DELETE /v1/sandboxes/sbx_1"] = f.gives(http.StatusAccepted, done)
			f.Routes["GET /v1/jobs/job_2"] = f.gives(http.StatusOK, done)
			f.Routes["GET /v1/jobs/job_2/events"] = func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte("id: 1-1\nevent: state\ndata: {\"state\":\"completed\"}\n\n"))
			}
			f.Script = prints("", wire.ExecuteResult{Installed: []wire.InstalledOne{{Name: "numpy", Version: "2.3.5", Status: "installed", Why: "imported as numpy"}}, Notes: []string{"Install it (POST /v1/sandboxes/sbx_1/packages)."}})
			got := f.sandfarm(t.Context(), "1", append([]string{"run", "-", "--no-save", "-p", "six", "--package", "numpy>=2", "--auto-install"}, test.args...)...)
			if got != (outputs{0, "", "note: numpy 2.3.5 installed\nnote: Install it (--package).\n"}) {
				t.Errorf("%+v", got)
			}
			started := slices.DeleteFunc(f.asked(), func(r string) bool { return strings.HasPrefix(r, "GET") })
			testbed.Diff(t, "requests that start work", test.want, started)
		})
	}
}

// Files that are not stored have one note: that of the farm where their tenant's storage is full, else that of the command line.
func TestRunNotesSkippedFilesOnce(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "a.py")
	testbed.Must(t, os.WriteFile(script, []byte("1"), 0o600))
	for _, c := range []struct {
		skipped int
		notes   []string
		want    string
	}{
		{1, []string{"The storage of your tenant is full (quota max_stored_mb)."}, "note: The storage of your tenant is full (quota max_stored_mb).\n"},
		{1, nil, "note: 1 file exceeded the limits of the farm and got no download link.\n"},
		{2, []string{"Other."}, "note: Other.\nnote: 2 files exceeded the limits of the farm and got no download link.\n"},
	} {
		f := newFarm(t)
		f.Script = prints("", wire.ExecuteResult{ArtifactsSkipped: c.skipped, Notes: c.notes})
		if got := f.sandfarm(t.Context(), "", "run", script); got != (outputs{0, "", c.want}) {
			t.Errorf("%+v, want %q", got, c.want)
		}
	}
}

func TestExecAutoInstall(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Script = func(func(string, any), <-chan struct{}) (string, *wire.Result) {
		return "completed", &wire.Result{Command: &wire.CommandResult{
			Results: []wire.CommandOutcome{{}},
			Installed: []wire.InstalledOne{
				{Name: "numpy", Version: "2.3.5", Status: "installed", Why: "imported as np"},
				{Name: "nosuch", Status: "failed", Why: "imported as nosuch", Message: "nosuch was not found in the package index: check its name."},
			},
			Notes: []string{"Create one with more memory_mb.", "Install it (POST /v1/sandboxes/sbx_1/packages)."},
		}}
	}
	got := f.sandfarm(t.Context(), "", "sandbox", "exec", "sbx_1", "--auto-install", "python a.py")
	if got != (outputs{0, "", "note: numpy 2.3.5 installed (imported as np)\nnote: nosuch failed: it was not found in the package index: check its name.\nnote: Create one with more --memory.\nnote: Install it (\"sandfarm packages install sbx_1 NAME\").\n"}) {
		t.Errorf("%+v", got)
	}
	if want := `POST /v1/sandboxes/sbx_1/commands {"command":"python a.py","auto_install":true}`; f.asked()[0] != want {
		t.Errorf("asked %s, want %s", f.asked()[0], want)
	}
}

func TestFlagsWithChoices(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		`POST /v1/sandboxes {"idle_seconds":60,"on_idle":"hibernate"}`:                    {"sandbox", "create", "--no-wait", "--idle", "1m", "--on-idle", "hibernate"},
		`POST /v1/run {"code":"1","on_output_limit":"stop"}`:                              {"run", "-", "--on-output-limit", "stop"},
		`POST /v1/sandboxes/sbx_1/execute {"code":"1","on_output_limit":"stop"}`:          {"run", "-", "--sandbox", "sbx_1", "--on-output-limit", "stop"},
		`POST /v1/sandboxes/sbx_1/commands {"command":"ls","on_output_limit":"continue"}`: {"sandbox", "exec", "sbx_1", "--on-output-limit", "continue", "ls"},
	} {
		f := newFarm(t)
		f.Script = prints("", wire.ExecuteResult{})
		f.sandfarm(t.Context(), "1", args...)
		if asked := f.asked(); !slices.Contains(asked, want) {
			t.Errorf("asked %q, want %s", asked, want)
		}
	}
}

func TestRunStopsIfAPackageCannotBeInstalled(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"Fresh": nil, "InASandbox": {"--sandbox", "sbx_1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			f.Routes["POST /v1/sandboxes/{id}/packages"] = f.start
			f.Script = installs(wire.InstalledOne{Name: "nope", Status: "failed", Message: "there is no such package"})
			f.Routes["POST /v1/sandboxes"] = f.gives(http.StatusAccepted, wire.Created{Sandbox: wire.Sandbox{ID: "sbx_1"}, Job: wire.Job{ID: "job_0"}})
			f.Routes["GET /v1/jobs/job_0"] = f.gives(http.StatusOK, wire.Job{ID: "job_0", State: "completed"})
			f.Routes["DELETE /v1/sandboxes/sbx_1"] = f.gives(http.StatusAccepted, wire.Job{})
			got := f.sandfarm(t.Context(), "1", append([]string{"run", "-", "--package", "nope"}, args...)...)
			if got.code != 1 || got.out != "" || !strings.HasSuffix(got.stderr, "sandfarm: install packages: nope failed: there is no such package\nsandfarm: \"sandfarm job events job_1\" shows what the installer printed.\n") {
				t.Errorf("%+v", got)
			}
			asked := strings.Join(f.asked(), "\n")
			if strings.Contains(asked, "/execute") || strings.Contains(asked, "/v1/run") {
				t.Error("the code ran without what it needs")
			}
			if own := args == nil; strings.Contains(asked, "DELETE /v1/sandboxes/sbx_1") != own {
				t.Errorf("own sandbox: %t, asked %s", own, asked)
			}
		})
	}
}

func TestATimeToLiveWithoutAUnitIsSaidToBeSeconds(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[string]string{"5": "sandfarm: --ttl 5 is 5 seconds; --ttl 5m is 5 minutes\n", "5s": "", "5m": "", "59": "sandfarm: --ttl 59 is 59 seconds; --ttl 59m is 59 minutes\n", "60": "", "0": ""} {
		f := newFarm(t)
		f.Routes["POST /v1/sandboxes"] = f.gives(http.StatusAccepted, wire.Created{Sandbox: wire.Sandbox{ID: "sbx_1"}, Job: wire.Job{ID: "job_1", State: "completed"}})
		if got := f.sandfarm(t.Context(), "", "sandbox", "create", "--no-wait", "--ttl", ttl); got.code != 0 || got.stderr != want {
			t.Errorf("--ttl %s: %+v, want %q", ttl, got, want)
		}
	}
}

func TestCreateWithPackages(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	made := wire.Created{Sandbox: wire.Sandbox{ID: "sbx_9"}, Job: wire.Job{ID: "job_1", State: "completed", Result: &wire.Result{Install: &wire.InstallResult{
		Stderr:   "installing six\n",
		Packages: []wire.InstalledOne{{Name: "nope", Status: "failed", Message: "there is no such package"}, {Name: "six", Version: "1.17", Status: "installed"}},
	}}}}
	f.Routes["POST /v1/sandboxes"] = f.gives(http.StatusCreated, made)
	f.Routes["GET /v1/sandboxes/sbx_9"] = f.gives(http.StatusOK, made.Sandbox)
	got := f.sandfarm(t.Context(), "", "sandbox", "create", "--package", "nope", "-p", "six")
	stderr := "note: six 1.17 installed\nsandfarm: install packages: nope failed: there is no such package\nsandfarm: \"sandfarm job events job_1\" shows what the installer printed.\n"
	if got != (outputs{1, "sbx_9\n", stderr}) || f.asked()[0] != `POST /v1/sandboxes {"packages":["nope","six"]}` {
		t.Errorf("%+v asked %q", got, f.asked())
	}
	if got := f.sandfarm(t.Context(), "", "sandbox", "create", "--package", "nope", "--json"); got.code != 1 || !strings.Contains(got.out, `"sbx_9"`) {
		t.Errorf("%+v", got)
	}
	made.Job.Result.Install.Stderr = "" // refused before an installer was started
	stderr, _, _ = strings.Cut(stderr, "sandfarm: \"sandfarm job events")
	if got := f.sandfarm(t.Context(), "", "sandbox", "create", "--package", "nope", "-p", "six"); got != (outputs{1, "sbx_9\n", stderr}) {
		t.Errorf("nothing was printed: %+v", got)
	}
}
