package mcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	protocol "github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// canonical are the parameters of the contract; a tool may have more.
func canonical() map[string][]string {
	return map[string][]string{
		"create_sandbox":                     {"allow_hosts", "cpus", "disk_mb", "gpu", "gpu_model", "image", "memory_mb", "name", "network", "packages", "runtime", "ttl_seconds"},
		"list_sandboxes":                     {},
		"execute_python_code":                {"auto_install", "code", "context", "on_output_limit", "sandbox_id", "timeout_seconds", "wait_seconds"},
		"execute_terminal_command":           {"command", "cwd", "on_output_limit", "sandbox_id", "timeout_seconds", "wait_seconds"},
		"install_packages_in_sandbox":        {"manager", "package_names", "sandbox_id", "timeout_seconds", "wait_seconds"},
		"check_package_status":               {"manager", "package_name", "sandbox_id", "wait_seconds"},
		"check_packages_installation_status": {"manager", "package_names", "sandbox_id", "wait_seconds"},
		"get_job_result":                     {"job_id", "wait_seconds"},
		"cancel_job":                         {"job_id", "wait_seconds"},
		"restart_kernel":                     {"context", "sandbox_id", "wait_seconds"},
		"upload_file_to_sandbox":             {"content", "content_base64", "dest_path", "local_file_path", "sandbox_id"},
		"list_files":                         {"path", "recursive", "sandbox_id"},
		"download_file":                      {"file_path", "sandbox_id"},
		"close_sandbox":                      {"sandbox_id"},
		"start_process":                      {"command", "cwd", "name", "sandbox_id", "timeout_seconds"},
		"read_process":                       {"cursor", "process_id", "sandbox_id", "wait_seconds"},
		"stop_process":                       {"process_id", "sandbox_id"},
		"get_port_url":                       {"expires_seconds", "path_style", "port", "sandbox_id"},
	}
}

func TestToolsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	readOnly := []string{"list_sandboxes", "check_package_status", "check_packages_installation_status", "get_job_result", "list_files", "download_file", "read_process"}
	for _, era := range eras() {
		list, err := b.client(era).ListTools(t.Context(), protocol.ListToolsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]string{}
		for _, tool := range list.Tools {
			got[tool.Name] = []string{}
			for name := range tool.InputSchema.Properties {
				got[tool.Name] = append(got[tool.Name], name)
			}
			slices.Sort(got[tool.Name])
			a := tool.Annotations
			if a.ReadOnlyHint == nil || a.DestructiveHint == nil || a.IdempotentHint == nil || a.OpenWorldHint == nil || a.Title == "" {
				t.Errorf("%s lacks annotations: %+v", tool.Name, a)
				continue
			}
			if runs := []string{"execute_python_code", "execute_terminal_command", "start_process"}; slices.Contains(runs, tool.Name) && !*a.OpenWorldHint {
				t.Errorf("%s is said to reach nothing", tool.Name)
			}
			if *a.ReadOnlyHint != slices.Contains(readOnly, tool.Name) || *a.ReadOnlyHint && *a.DestructiveHint {
				t.Errorf("%s is read-only: %t, destructive: %t", tool.Name, *a.ReadOnlyHint, *a.DestructiveHint)
			}
			if len(tool.Description) < 80 || len(tool.Description) > 500 {
				t.Errorf("the description of %s has %d characters", tool.Name, len(tool.Description))
			}
		}
		if diff := cmp.Diff(canonical(), got); diff != "" {
			t.Errorf("%s: %s", era, diff)
		}
	}
}

// What a sandbox reaches is said in one sentence, and pip is not forbidden: pip install works in a command.
func TestNetworkIsDescribedInOneSentence(t *testing.T) {
	t.Parallel()
	const sentence = "Sandboxes have no network but the farm's package index (pip install works); network sets it."
	b := setup(t, &fakeFarm{})
	answer, body := b.post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + legacy + `","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	if answer.StatusCode != http.StatusOK || !strings.Contains(body, sentence) {
		t.Errorf("the instructions lack the sentence: %s", body)
	}
	list, err := b.client(modern).ListTools(t.Context(), protocol.ListToolsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list.Tools {
		if says := strings.Contains(tool.Description, sentence); says != slices.Contains([]string{"create_sandbox", "execute_terminal_command"}, tool.Name) {
			t.Errorf("%s says the sentence: %t", tool.Name, says)
		}
		if rest := strings.ReplaceAll(tool.Description, sentence, ""); strings.Contains(rest, "network") || strings.Contains(rest, "use pip") {
			t.Errorf("%s describes the network in other words: %s", tool.Name, tool.Description)
		}
	}
}

// Clients give a model the name, description and input schema of every tool before its first question, some the output schemas too.
func TestToolsCostFewTokens(t *testing.T) {
	t.Parallel()
	_, body := setup(t, &fakeFarm{}).post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	var answer struct {
		Result struct {
			Tools []struct {
				Name, Description         string
				InputSchema, OutputSchema json.RawMessage
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatal(err)
	}
	input, output := 0, 0
	for _, tool := range answer.Result.Tools {
		input += len(tool.Name) + len(tool.Description) + len(tool.InputSchema)
		output += len(tool.OutputSchema)
	}
	if input == 0 || input > 13_000 || output > 12_000 {
		t.Errorf("the tools have %d characters, and their output schemas %d", input, output)
	}
}

// A farm without the allowlist does not offer it, none has the network full, and the farm's refusal of what a model sends anyway says why.
func TestTheAllowlistIsOfferedWhereItIsEnabled(t *testing.T) {
	t.Parallel()
	var asked wire.CreateRequest
	f := &fakeFarm{CreateFunc: func(_ context.Context, r wire.CreateRequest, _ time.Duration) (wire.Created, error) {
		asked = r
		return wire.Created{}, farm.Invalidf("It is not enabled.")
	}}
	for _, off := range []bool{false, true} {
		b := setup(t, f, func(o *mcp.Options) { o.NoAllowlist = off })
		_, body := b.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		_, network, _ := strings.Cut(body, `"network":{`)
		network, _, _ = strings.Cut(network, "}")
		if strings.Contains(network, "allowlist") == off || strings.Contains(network, "full") || strings.Contains(body, "allow_hosts") == off {
			t.Errorf("off %t: %s", off, network)
		}
		r := b.call("create_sandbox", map[string]any{"network": "allowlist", "allow_hosts": []any{"a.example.com"}})
		if !strings.Contains(textOf(r), "It is not enabled.") || *asked.Network != "allowlist" || len(asked.AllowHosts) != 1 {
			t.Errorf("off %t: %s %+v", off, textOf(r), asked)
		}
		if r := b.call("create_sandbox", map[string]any{"network": "full"}); !strings.Contains(textOf(r), "It is not enabled.") || *asked.Network != "full" {
			t.Errorf("off %t: %s", off, textOf(r))
		}
	}
}

// Some clients refuse lists of types, and models need a description of each parameter.
func TestSchemasSuitEveryClient(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	_, body := b.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	var answer struct {
		Result struct {
			Tools []struct {
				Name                      string
				InputSchema, OutputSchema map[string]any
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || len(answer.Result.Tools) != len(canonical()) {
		t.Fatalf("%v: %s", err, body)
	}
	for _, tool := range answer.Result.Tools {
		if tool.InputSchema["type"] != "object" || tool.OutputSchema["type"] != "object" || tool.InputSchema["additionalProperties"] != false {
			t.Errorf("%s has schemas that are no closed objects: %v %v", tool.Name, tool.InputSchema, tool.OutputSchema)
		}
		properties, _ := tool.InputSchema["properties"].(map[string]any)
		for name, value := range properties {
			if p, _ := value.(map[string]any); p["description"] == nil {
				t.Errorf("%s.%s has no description", tool.Name, name)
			}
		}
		walk(t, tool.Name+".input", tool.InputSchema)
		walk(t, tool.Name+".output", tool.OutputSchema)
	}
}

func walk(t *testing.T, where string, schema map[string]any) {
	t.Helper()
	switch schema["type"].(type) {
	case string:
	case nil:
		if schema["anyOf"] == nil {
			t.Errorf("%s has no type", where)
		}
	default:
		t.Errorf("%s has the type %v", where, schema["type"])
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, value := range properties {
		p, _ := value.(map[string]any)
		walk(t, where+"."+name, p)
	}
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, ok := properties[name.(string)]; !ok {
			t.Errorf("%s requires %v, which it does not have", where, name)
		}
	}
	if items, ok := schema["items"].(map[string]any); ok {
		walk(t, where+"[]", items)
	}
}
