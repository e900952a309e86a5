package bridge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/bridge"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// run runs the verb mcp with a farm at http://farm.test:8000.
func run(t *testing.T, args ...string) (out, stderr string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	streams := verbs.Streams{In: strings.NewReader(""), Out: &o, Err: &e, Getenv: func(string) string { return "" }}
	root := &cobra.Command{Use: "sandfarm", SilenceErrors: true, SilenceUsage: true}
	root.SetOut(&o)
	root.SetErr(&e)
	connect := func() (*client.Client, error) {
		return client.New("http://farm.test:8000/", client.WithKey("very-secret"))
	}
	root.AddCommand(bridge.Command(streams, connect, "1.2.3"))
	root.SetArgs(append([]string{"mcp"}, args...))
	code = verbs.Execute(t.Context(), root, &e)
	return o.String(), e.String(), code
}

func TestConfigOfEveryClient(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	testbed.Must(t, err)
	for _, name := range bridge.Clients() {
		for _, over := range []string{"http", "stdio"} {
			t.Run(name+"Over"+over, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				out, stderr, code := run(t, "config", "--client", name, "--over", over, "--root", dir)
				var config struct {
					MCPServers, Servers map[string]map[string]any
				}
				if err := json.Unmarshal([]byte(out), &config); err != nil || code != 0 || !strings.Contains(stderr, "goes into") {
					t.Fatalf("%v, code %d: %s%s", err, code, out, stderr)
				}
				server := config.MCPServers["sandfarm"]
				if name == "vscode" {
					server = config.Servers["sandfarm"]
				}
				text, err := json.Marshal(server)
				if err != nil || !strings.Contains(string(text), "http://farm.test:8000") {
					t.Errorf("%v: it does not lead to the farm: %s", err, out)
				}
				if over == "stdio" && (server["command"] != program || !strings.Contains(string(text), dir)) {
					t.Errorf("it does not start this program with the root: %s", out)
				}
				if over == "http" && !strings.Contains(string(text), "http://farm.test:8000/mcp") {
					t.Errorf("it does not lead to /mcp: %s", out)
				}
				if strings.Contains(out, "very-secret") {
					t.Errorf("the key is printed: %s", out)
				}
			})
		}
	}
}

func TestConfigPrintsAllWaysWithWhereTheyGo(t *testing.T) {
	t.Parallel()
	for _, name := range bridge.Clients() {
		out, stderr, code := run(t, "config", "--client", name)
		if code != 0 || stderr != "" || !strings.Contains(out, "# over http: ") || !strings.Contains(out, "# over stdio: ") {
			t.Errorf("%s: code %d, %s%s", name, code, out, stderr)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		want string
	}{
		"NoClient":       {[]string{"config"}, "--client is missing: it is one of claude-desktop"},
		"UnknownClient":  {[]string{"config", "--client", "emacs"}, "claude-desktop, claude-code, cursor, vscode"},
		"UnknownWay":     {[]string{"config", "--client", "cursor", "--over", "carrier-pigeon"}, "http or stdio"},
		"NoSuchRoot":     {[]string{"--root", "/nonexistent/x"}, "no such file"},
		"UnknownToolset": {[]string{"--toolset", "nothing"}, `there is no toolset "nothing"; there is: sandfarm`},
		"Argument":       {[]string{"serve"}, `unknown command "serve"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, stderr, code := run(t, test.args...)
			if code == 0 || out != "" || !strings.Contains(stderr, test.want) {
				t.Errorf("code %d, %s%s, want %q", code, out, stderr, test.want)
			}
		})
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

func TestHelp(t *testing.T) {
	t.Parallel()
	help, _, code := run(t, "--help")
	config, _, code2 := run(t, "config", "--help")
	if code != 0 || code2 != 0 {
		t.Fatalf("exit codes %d and %d", code, code2)
	}
	text := "### sandfarm mcp\n\n" + help + "\n### sandfarm mcp config\n\n" + config
	golden := filepath.Join("testdata", "help.golden")
	if *update {
		write(t, golden, text)
	}
	want, err := os.ReadFile(golden)
	testbed.Must(t, err)
	testbed.Diff(t, "the help has changed (go test -update writes it anew)", string(want), text)
}

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
