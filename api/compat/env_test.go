package compat_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// envBundle is a toolset over its own fake farm, with one environment.
type envBundle struct {
	t    *testing.T
	farm *fakeFarm
	set  *compat.Toolset
	env  compat.Env
	id   string
}

func setupEnv(t *testing.T) *envBundle {
	t.Helper()
	b := &envBundle{t: t, farm: &fakeFarm{}, set: toolsetNamed("python-env")}
	b.env = compat.Env{Farm: func(context.Context) compat.Farm { return b.farm }}
	reply, err := b.set.Call(t.Context(), b.env, "create_python_env", nil)
	testbed.Must(t, err)
	b.id, _ = reply.Value.(string)
	return b
}

// call calls a tool in the environment and returns its answer, decoded from JSON.
func (b *envBundle) call(tool string, args map[string]any) (map[string]any, mcp.Reply) {
	b.t.Helper()
	if _, there := args["container_id"]; !there {
		args["container_id"] = b.id
	}
	reply, _ := b.set.Call(b.t.Context(), b.env, tool, args)
	text, err := farm.Encode(reply.Value)
	testbed.Must(b.t, err)
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		b.t.Fatalf("%s: %v in %s", tool, err, text)
	}
	return out, reply
}

func TestEnvironmentsHaveABareIDAndCloseAfterAnIdleHour(t *testing.T) {
	t.Parallel()
	b := setupEnv(t)
	box, err := b.farm.Sandbox(t.Context(), b.id)
	if err != nil || box.IdleSeconds != 3600 {
		t.Errorf("%+v %v", box, err)
	}
}

func TestExecuteGivesNamesAndLinks(t *testing.T) {
	t.Parallel()
	b := setupEnv(t)
	b.farm.ExecuteFunc = func(_ context.Context, r wire.ExecuteRequest) wire.Job {
		return completed(&wire.Result{Execute: &wire.ExecuteResult{Stdout: r.Code, Artifacts: []wire.Artifact{{Path: "out/a.csv", URL: "http://s/1"}}}})
	}
	want := map[string]any{
		"stdout": "x", "stderr": "", "exit_code": 0.0, "files": []any{"out/a.csv"},
		"file_links": []any{map[string]any{"name": "out/a.csv", "url": "http://s/1"}},
	}
	got, _ := b.call("execute_python_code", map[string]any{"code": "x"})
	testbed.Diff(t, "", want, got)
	reply, err := b.set.Call(t.Context(), b.env, "execute_python_code", map[string]any{"code": "x", "sandbox_id": b.id})
	if err != nil || reply.IsError {
		t.Errorf("by sandbox_id: %v %v", reply, err)
	}
}

func TestUnknownEnvironmentsAreANormalAnswer(t *testing.T) {
	t.Parallel()
	b := setupEnv(t)
	over := b.farm.Over(t)
	for tool, more := range map[string]map[string]any{
		"execute_python_code": {"code": "1"}, "install_package_in_env": {"package_name": "-r x"}, "check_package_status": {"package_name": "six"},
	} {
		for _, id := range []string{"sbx_0", "", "../../x", over.ID} {
			more["container_id"] = id
			got, reply := b.call(tool, more)
			if text, _ := got["error"].(string); reply.IsError || !strings.Contains(text, "create_python_env") {
				t.Errorf("%s of %q: %v", tool, id, got)
			}
		}
	}
	for name, args := range map[string]map[string]any{"NoCode": {}, "WrongType": {"code": 1.0}, "Unknown": {"code": "1", "x": 1.0}} {
		if got, reply := b.call("execute_python_code", args); !reply.IsError || got["error"] == "" {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func envJob(status, message string) wire.Job {
	return completed(&wire.Result{Install: &wire.InstallResult{
		Stderr: "log", Packages: []wire.InstalledOne{{Name: "text-unidecode", Requested: "Text_Unidecode", Version: "1.3", Status: status, Message: message}},
	}})
}

func TestInstallAnswersBeforeItEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		job    wire.Job
		err    error
		status string
		done   bool
		ok     any
	}{
		"Installed": {envJob("installed", ""), nil, "success", true, true},
		"Failed":    {envJob("failed", "no such version"), nil, "failed", true, false},
		"NoPackage": {wire.Job{}, farm.Invalidf(`packages[0] is "…": give a name`), "failed", true, false},
		"Running":   {wire.Job{ID: "job_1", State: "running"}, nil, "installing", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupEnv(t)
			b.farm.InstallFunc = func(context.Context, wire.PackagesRequest) (wire.Job, error) { return test.job, test.err }
			got, _ := b.call("install_package_in_env", map[string]any{"package_name": "Text_Unidecode"})
			if got["status"] != test.status || got["complete"] != test.done || got["success"] != test.ok || got["message"] == "" || strings.Contains(got["message"].(string), "packages[") {
				t.Errorf("%v", got)
			}
			if _, there := got["end_time"]; there != test.done {
				t.Errorf("%v", got)
			}
			if _, there := got["stderr"]; there != (test.status == "failed") {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestASecondInstallJoinsTheFirst(t *testing.T) {
	t.Parallel()
	b := setupEnv(t)
	job := wire.Job{ID: "job_1", State: "running", CreatedAt: time.Now()}
	var asked time.Duration
	b.farm.PackageFunc = func(name string) (wire.Package, error) {
		return wire.Package{Name: name, Status: "installing", JobID: "job_1"}, nil
	}
	b.farm.JobFunc = func(_ context.Context, _ string, wait time.Duration) (wire.Job, error) { asked = wait; return job, nil }
	b.farm.InstallFunc = func(context.Context, wire.PackagesRequest) (wire.Job, error) {
		t.Error("it was installed twice")
		return job, nil
	}
	got, _ := b.call("install_package_in_env", map[string]any{"package_name": "Text_Unidecode"})
	if got["status"] != "installing" || !strings.Contains(got["message"].(string), "already in progress") || asked <= 0 || asked > 5*time.Second {
		t.Errorf("%v after %s", got, asked)
	}
	job = envJob("installed", "")
	if got, _ := b.call("install_package_in_env", map[string]any{"package_name": "Text_Unidecode"}); got["status"] != "success" {
		t.Errorf("%v", got)
	}
}

func TestStatusOfAPackage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wanted string
		found  wire.Package
		err    error
		job    wire.Job
		status string
		done   bool
		ok     any
		has    string
	}{
		"There":       {"Text.Unidecode>=1", wire.Package{Name: "text-unidecode", Status: "installed", Version: "1.3"}, nil, wire.Job{}, "success", true, true, "1.3"},
		"OtherThere":  {"text-unidecode==9", wire.Package{Name: "text-unidecode", Status: "installed", Version: "1.3"}, nil, wire.Job{}, "not_found", true, false, "1.3 is installed, not text-unidecode==9"},
		"Blanks":      {" text-unidecode ", wire.Package{Name: "text-unidecode", Status: "installed", Version: "1.3"}, nil, wire.Job{}, "success", true, true, "1.3"},
		"StillThere":  {"text-unidecode>=1", wire.Package{Name: "text-unidecode", Status: "failed", Version: "1.2", JobID: "job_1"}, nil, envJob("failed", "no such version"), "success", true, true, "1.2 is installed. The installation of Text_Unidecode failed: no such version"},
		"FailedAgain": {"text-unidecode", wire.Package{Name: "text-unidecode", Status: "failed", Version: "1.2", JobID: "job_1"}, nil, envJob("failed", "no luck"), "failed", true, false, "no luck"},
		"NotThere":    {"nump", wire.Package{Name: "nump", Status: "not_found"}, nil, wire.Job{}, "not_found", true, false, "nump"},
		"NoName":      {"-r /etc/passwd", wire.Package{}, farm.Invalidf("that is no name"), wire.Job{}, "not_found", true, false, "-r"},
		"Installing":  {"text-unidecode", wire.Package{Status: "installing", JobID: "job_1"}, nil, wire.Job{ID: "job_1", State: "running", CreatedAt: time.Now().Add(-time.Minute)}, "installing", false, nil, "again"},
		"Failed":      {"text-unidecode==9", wire.Package{Status: "failed", JobID: "job_1", Message: "m"}, nil, envJob("failed", "no such version"), "failed", true, false, "no such version"},
		"JobIsForgot": {"text-unidecode", wire.Package{Status: "failed", JobID: "job_1", Message: "no luck"}, farm.NotFoundf("no job"), wire.Job{}, "failed", true, false, "no luck"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupEnv(t)
			b.farm.PackageFunc = func(string) (wire.Package, error) {
				if farm.CodeOf(test.err) == farm.CodeInvalid {
					return wire.Package{}, test.err
				}
				return test.found, nil
			}
			b.farm.JobFunc = func(_ context.Context, _ string, wait time.Duration) (wire.Job, error) {
				if wait > 5*time.Second {
					t.Errorf("it waits %s", wait)
				}
				return test.job, test.err
			}
			got, reply := b.call("check_package_status", map[string]any{"package_name": test.wanted})
			if got["status"] != test.status || got["complete"] != test.done || got["success"] != test.ok || !strings.Contains(got["message"].(string), test.has) || reply.IsError {
				t.Errorf("%v", got)
			}
			elapsed, _ := got["elapsed_seconds"].(float64)
			if test.status == "installing" && (elapsed < 59 || got["start_time"] == nil) {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestIncompleteToolsetsAreNotServed(t *testing.T) {
	t.Parallel()
	complete := func() *compat.Toolset {
		return &compat.Toolset{
			Name: "a", Title: "A", About: "About A.", Instructions: "Do this.",
			Refuse: func(string, mcp.Arguments, error) mcp.Reply { return mcp.Reply{} },
			Tools: []compat.Tool{{
				Name: "run", Title: "Run", About: "Runs.", Run: func(context.Context, *compat.Call) (any, error) { return nil, nil },
			}},
		}
	}
	_, err := complete().Serve(compat.Env{}, "1", mcp.HTTP{})
	testbed.Must(t, err)
	for want, change := range map[string]func(*compat.Toolset){
		"a toolset needs Refuse": func(s *compat.Toolset) { s.Refuse = nil },
		"Instructions":           func(s *compat.Toolset) { s.Instructions = "" },
		"there are no tools":     func(s *compat.Toolset) { s.Tools = nil },
		`tool "run": Run`:        func(s *compat.Toolset) { s.Tools[0].Run = nil },
		`tool "run": Name, T`:    func(s *compat.Toolset) { s.Tools[0].About = "" },
		"listed twice":           func(s *compat.Toolset) { s.Tools = append(s.Tools, s.Tools[0]) },
	} {
		set := complete()
		change(set)
		if _, err := set.Serve(compat.Env{}, "1", mcp.HTTP{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestEveryToolsetIsComplete(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, set := range compat.Toolsets() {
		if err := set.Validate(); err != nil {
			t.Error(err)
		}
		if names[set.Name] {
			t.Errorf("two toolsets have the name %s", set.Name)
		}
		names[set.Name] = true
	}
	if !names[compat.Bare] {
		t.Errorf("there is no toolset %s to serve at /sse", compat.Bare)
	}
}
