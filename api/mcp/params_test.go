package mcp_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	protocol "github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/wire"
)

func TestMistakesNameTheParameter(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	run := func(args map[string]any) map[string]any {
		out := map[string]any{"sandbox_id": "sbx_1", "code": "1"}
		for k, v := range args {
			out[k] = v
		}
		return out
	}
	for name, c := range map[string]struct {
		tool string
		args any
		want []string
	}{
		"Missing":          {"execute_python_code", map[string]any{"sandbox_id": "sbx_1"}, []string{"code is missing: give the code, up to 10 MiB."}},
		"MissingAll":       {"execute_python_code", nil, []string{"sandbox_id is missing: give the one from create_sandbox."}},
		"NullIsMissing":    {"execute_python_code", run(map[string]any{"code": nil}), []string{"code is missing"}},
		"Unknown":          {"execute_python_code", run(map[string]any{"timeout": 3}), []string{`"timeout"`, "timeout_seconds", "code (required)"}},
		"NumberForText":    {"execute_python_code", run(map[string]any{"code": 42}), []string{"code must be a text", "number 42"}},
		"TextForNumber":    {"execute_python_code", run(map[string]any{"timeout_seconds": "soon"}), []string{"timeout_seconds must be a number", `"soon"`}},
		"HalfASecond":      {"execute_python_code", run(map[string]any{"timeout_seconds": 0.5}), []string{"timeout_seconds is 0.5", "whole"}},
		"HugeNumber":       {"execute_python_code", run(map[string]any{"timeout_seconds": 1e300}), []string{"timeout_seconds", "whole"}},
		"TextForFlag":      {"execute_python_code", run(map[string]any{"auto_install": "yes"}), []string{"auto_install must be true or false"}},
		"WaitTooLong":      {"execute_python_code", run(map[string]any{"wait_seconds": 50.5}), []string{"wait_seconds is 50.5", "0 to 50"}},
		"WaitBelowZero":    {"get_job_result", map[string]any{"job_id": "job_1", "wait_seconds": -1}, []string{"wait_seconds is -1"}},
		"TextForList":      {"install_packages_in_sandbox", map[string]any{"sandbox_id": "sbx_1", "package_names": "numpy"}, []string{"package_names must be an array"}},
		"NumberInList":     {"install_packages_in_sandbox", map[string]any{"sandbox_id": "sbx_1", "package_names": []any{"a", 1}}, []string{"package_names[1]"}},
		"NotOfTheEnum":     {"create_sandbox", map[string]any{"network": "wifi"}, []string{`network is "wifi"`, "packages"}},
		"ArgumentsNoObj":   {"create_sandbox", []any{1}, []string{"object"}},
		"NothingToUpload":  {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "dest_path": "x"}, []string{"content is missing"}},
		"BothContents":     {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "dest_path": "x", "content": "a", "content_base64": "YQ=="}, []string{"content_base64, not both"}},
		"NoBase64":         {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "dest_path": "x", "content_base64": "%%"}, []string{"content_base64 is not base64"}},
		"NoDestination":    {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "content": "a"}, []string{"dest_path is missing"}},
		"DirWithoutName":   {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "content": "a", "dest_path": "in/"}, []string{"dest_path", "name of the file"}},
		"FileOfTheCaller":  {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "local_file_path": "/etc/passwd"}, []string{"local_file_path", "content_base64"}},
		"NoPackages":       {"check_packages_installation_status", map[string]any{"sandbox_id": "sbx_1", "package_names": []any{}}, []string{"package_names has 0"}},
		"UnknownSandbox":   {"execute_python_code", run(nil), []string{`sandbox "sbx_1"`, "list_sandboxes"}},
		"UnknownJob":       {"get_job_result", map[string]any{"job_id": "job_1"}, []string{`job "job_1"`, "job_id"}},
		"UnknownFile":      {"download_file", map[string]any{"sandbox_id": "sbx_1", "file_path": "no.txt"}, []string{"no.txt", "list_files"}},
		"LongTextIsCutOff": {"execute_python_code", run(map[string]any{strings.Repeat("x", 1<<20): 1}), []string{"xxx…"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := b.client(modern)
			r, err := client.CallTool(t.Context(), protocol.CallToolRequest{Params: protocol.CallToolParams{Name: c.tool, Arguments: c.args}})
			if err != nil {
				t.Fatal(err)
			}
			b.conforms(client, c.tool, r)
			for _, want := range c.want {
				if !r.IsError || !strings.Contains(textOf(r), want) || len(textOf(r)) > 2000 {
					t.Errorf("isError %t, want %q in: %.300s", r.IsError, want, textOf(r))
				}
			}
		})
	}
}

// Some models write numbers as texts.
func TestNumbersMayBeTexts(t *testing.T) {
	t.Parallel()
	var got []int
	b := setup(t, &fakeFarm{ExecuteFunc: func(_ context.Context, id string, r wire.ExecuteRequest, wait time.Duration) (wire.Job, error) {
		got = append(got, *r.TimeoutSeconds, int(wait.Milliseconds()))
		return wire.Job{ID: "job_1", SandboxID: id, State: "queued"}, nil
	}})
	for text, ok := range map[string]bool{"10": true, "10.5": false, "NaN": false, "Inf": false, "": false, "ten": false} {
		r := b.call("execute_python_code", map[string]any{"sandbox_id": "sbx_1", "code": "1", "timeout_seconds": text, "wait_seconds": "0.5"})
		if r.IsError == ok {
			t.Errorf("%q: %s", text, textOf(r))
		}
	}
	if !slices.Equal(got, []int{10, 500}) {
		t.Error(got)
	}
}

func TestUnknownToolIsAnErrorOfTheProtocol(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	for _, era := range eras() {
		_, err := b.client(era).CallTool(t.Context(), protocol.CallToolRequest{Params: protocol.CallToolParams{Name: "no_such_tool"}})
		if err == nil || !strings.Contains(err.Error(), "no_such_tool") {
			t.Errorf("%s: %v", era, err)
		}
	}
}
