package bridge_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

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
