package bridge_test

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// top is the root of the repository.
const top = "../../../../"

// file reads a file of the repository.
func file(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(top + name)
	testbed.Must(t, err)
	return string(content)
}

// tools returns the names of the served tools.
func tools(t *testing.T) []string {
	t.Helper()
	server, err := mcp.New(mcp.Options{Farm: func(context.Context) mcp.Farm { return nil }})
	testbed.Must(t, err)
	var names []string
	for name := range server.MCP().ListTools() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// aliases are tools under the names of other systems: they are served, but not listed in the registry.
func alias(name string) bool { return name == "check_packages_installation_status" }

func TestServerJSONAgreesWithTheProgram(t *testing.T) {
	t.Parallel()
	var got struct {
		Schema      string `json:"$schema"`
		Name        string
		Description string
		Version     string
		Repository  struct{ URL, Source string }
		Remotes     []struct{ Type, URL string }
		Packages    []any
		Meta        map[string]struct{ Tools []string } `json:"_meta"`
	}
	testbed.Must(t, json.Unmarshal([]byte(file(t, "server.json")), &got))
	testbed.Diff(t, "schema", "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json", got.Schema)
	module := regexp.MustCompile(`(?m)^module github\.com/([^/\s]+)/([^/\s]+)$`).FindStringSubmatch(file(t, "go.mod"))
	if module == nil || got.Name != "io.github."+module[1]+"/"+module[2] || got.Repository.URL != "https://github.com/"+module[1]+"/"+module[2] {
		t.Errorf("%s of %s is not the module %v", got.Name, got.Repository.URL, module)
	}
	if n := len(got.Description); n == 0 || n > 100 {
		t.Errorf("the description has %d bytes; the registry takes 1 to 100", n)
	}
	released := "0.0.0"
	if newest := regexp.MustCompile(`(?m)^## \[(\d+\.\d+\.\d+[^\]]*)\]`).FindStringSubmatch(file(t, "CHANGELOG.md")); newest != nil {
		released = newest[1]
	}
	testbed.Diff(t, "version, which is the newest release of the changelog", released, got.Version)
	if len(got.Remotes) != 1 || got.Remotes[0].Type != "streamable-http" || !strings.HasSuffix(got.Remotes[0].URL, "/mcp") {
		t.Errorf("remotes %+v", got.Remotes)
	}
	named := slices.Sorted(slices.Values(got.Meta["io.modelcontextprotocol.registry/publisher-provided"].Tools))
	testbed.Diff(t, "tools", slices.DeleteFunc(tools(t), alias), named)
}

func TestTheManualShowsEveryToolOfEveryToolset(t *testing.T) {
	t.Parallel()
	manual := file(t, "docs/mcp.md")
	names := tools(t)
	for _, set := range compat.Toolsets() {
		names = append(names, set.Name)
		for _, tool := range set.Tools {
			names = append(names, tool.Name)
		}
	}
	for _, name := range names {
		if !strings.Contains(manual, "`"+name+"`") {
			t.Errorf("docs/mcp.md does not mention %s", name)
		}
	}
	if len(names) == 0 {
		t.Error("there is no tool")
	}
}
