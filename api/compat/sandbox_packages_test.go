package compat_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/client"
	protocol "github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestInstallsAreReported(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	one := func(status string) wire.Job {
		return completed(&wire.Result{Install: &wire.InstallResult{Stderr: "log", Packages: []wire.InstalledOne{{Name: "six", Requested: "six", Status: status, Message: "no luck"}}}})
	}
	for name, test := range map[string]struct {
		job    wire.Job
		err    error
		status string
		done   bool
		ok     any
	}{
		"Installed": {one("installed"), nil, "success", true, true},
		"Failed":    {one("failed"), nil, "failed", true, false},
		"NoPackage": {wire.Job{}, farm.Invalidf(`packages[0] is "six": give a name`), "failed", true, false},
		"Running":   {wire.Job{ID: "job_1", State: "running"}, nil, "installing", false, nil},
	} {
		b.farm.InstallFunc = func(context.Context, wire.PackagesRequest) (wire.Job, error) { return test.job, test.err }
		b.farm.JobFunc = func(context.Context, string, time.Duration) (wire.Job, error) { return test.job, nil }
		got, err := b.call("install_packages_in_sandbox", b.in(map[string]any{"package_names": []any{"six"}}))
		if err != nil || got["status"] != test.status || got["complete"] != test.done || got["success"] != test.ok || got["message"] == "" {
			t.Errorf("%s: %v %v", name, got, err)
		}
		if _, there := got["stderr"]; there != (test.status == "failed") {
			t.Errorf("%s: %v", name, got)
		}
		if _, there := got["end_time"]; there != test.done {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestPackagesAreCheckedAsRequested(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	b.farm.PackageFunc = func(name string) (wire.Package, error) {
		switch name {
		case "numpy":
			return wire.Package{Name: name, Status: "installed", Version: "2.5.5"}, nil
		case "tabulate":
			return wire.Package{Name: name, Status: "failed", Version: "0.9.0", Message: "There is no version 99."}, nil
		case "broken":
			return wire.Package{Name: name, Status: "failed", Message: "no luck"}, nil
		case "slow":
			return wire.Package{Name: name, Status: "installing", JobID: "job_1"}, nil
		case "-r x":
			return wire.Package{}, farm.Invalidf("that is no name")
		}
		return wire.Package{Name: name, Status: "not_found"}, nil
	}
	names := []any{"NumPy", "numpy>=1", " numpy ", "numpy==1.0", "numpy", "numpy", "tabulate", "tabulate==99", "broken", "slow[all]>=1", "-r x", "emoji"}
	got, err := b.call("check_packages_installation_status", b.in(map[string]any{"package_names": names}))
	there := func(version string) any { return map[string]any{"installed": true, "version": version} }
	not := map[string]any{"installed": false}
	want := map[string]any{
		"NumPy": there("2.5.5"), "numpy>=1": there("2.5.5"), " numpy ": there("2.5.5"), "numpy==1.0": not, "numpy": there("2.5.5"), "tabulate": there("0.9.0"),
		"tabulate==99": not, "broken": not, "slow[all]>=1": not, "-r x": not, "emoji": not,
	}
	if diff := cmp.Diff(want, got["packages"]); diff != "" || err != nil || got["status"] != "success" {
		t.Errorf("%v %v %s", err, got["status"], diff)
	}
	message, _ := got["message"].(string)
	for _, part := range []string{
		"5 of 11 packages are installed.", "numpy 2.5.5 is installed, not numpy==1.0.", "tabulate==99 could not be installed: There is no version 99.",
		"broken could not be installed: no luck", "slow[all]>=1 is being installed",
	} {
		if !strings.Contains(message, part) {
			t.Errorf("it does not say %q: %s", part, message)
		}
	}
	over := b.farm.Over(t)
	for _, tool := range []string{"check_packages_installation_status", "install_packages_in_sandbox"} {
		for _, name := range []string{"numpy", "-r x"} {
			got, err := b.call(tool, map[string]any{"sandbox_id": over.ID, "package_names": []any{name}})
			if message, _ := got["message"].(string); farm.CodeOf(err) != farm.CodeConflict || got["error"] != true || !strings.Contains(message, "closed") {
				t.Errorf("%s of %s in a closed sandbox: %v %v", tool, name, got, err)
			}
		}
	}
}

func TestBlanksAroundNamesAreTrimmed(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	var asked []string
	b.farm.InstallFunc = func(_ context.Context, r wire.PackagesRequest) (wire.Job, error) {
		asked = r.Packages
		return completed(&wire.Result{Install: &wire.InstallResult{}}), nil
	}
	got, err := b.call("install_packages_in_sandbox", b.in(map[string]any{"package_names": []any{" six ", "numpy\n"}}))
	if diff := cmp.Diff([]string{"six", "numpy"}, asked); diff != "" || err != nil || cmp.Diff([]any{" six ", "numpy\n"}, got["packages"]) != "" {
		t.Errorf("%v %v %s", got, err, diff)
	}
	for given, want := range map[string]string{" a b ": "python-sandbox-a b", "  ": ""} {
		got, err := b.call("create_sandbox", map[string]any{"name": given})
		name, _ := got["name"].(string)
		if err != nil || want != "" && name != want || strings.TrimSpace(name) != name || len(name) <= len("python-sandbox-") {
			t.Errorf("%q: %v %v", given, got, err)
		}
	}
}

// A dropped SSE stream used to end the code that its call had started.
func TestAJobContinuesWhenItsStreamDrops(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	waiting, left := make(chan struct{}), make(chan struct{})
	b.farm.ExecuteFunc = func(context.Context, wire.ExecuteRequest) wire.Job { return wire.Job{ID: "job_1", State: "running"} }
	b.farm.JobFunc = func(ctx context.Context, _ string, _ time.Duration) (wire.Job, error) {
		close(waiting)
		<-ctx.Done()
		close(left)
		return wire.Job{}, ctx.Err()
	}
	server, err := b.set.Serve(b.env, "1", mcp.HTTP{})
	testbed.Must(t, err)
	sse := server.SSE(mcp.SSEOptions{Messages: "/messages/"})
	mux := http.NewServeMux()
	mux.HandleFunc("/sse", sse.Stream)
	mux.HandleFunc("/messages/", sse.Post)
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)

	c, err := client.NewSSEMCPClient(web.URL + "/sse")
	testbed.Must(t, err)
	testbed.Must(t, c.Start(t.Context()))
	_, err = c.Initialize(t.Context(), protocol.InitializeRequest{Params: protocol.InitializeParams{ProtocolVersion: "2024-11-05"}})
	testbed.Must(t, err)
	go func() {
		_, _ = c.CallTool(context.WithoutCancel(t.Context()), protocol.CallToolRequest{Params: protocol.CallToolParams{
			Name: "execute_python_code", Arguments: b.in(map[string]any{"code": "while True: pass"}),
		}})
	}()
	<-waiting
	testbed.Must(t, c.Close())
	<-left      // the wait for the job has ended
	web.Close() // and the call has returned
	if canceled := b.farm.Canceled(); len(canceled) > 0 {
		t.Errorf("canceled: %v", canceled)
	}
}
