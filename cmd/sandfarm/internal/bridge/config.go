package bridge

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
)

// The ways to reach the tools.
const (
	overHTTP  = "http"
	overStdio = "stdio"
)

// Target is the server that a configuration leads to.
type Target struct {
	URL     string // of the farm, without a slash at its end
	Program string // this program, for stdio
	Dir     string // whose files the tools may use over stdio
	Toolset string // which tools; empty: the farm's own
}

// name is the server's name in a client's configuration.
func (t Target) name() string {
	if t.own() {
		return Toolset
	}
	return Toolset + "-" + t.Toolset
}

func (t Target) own() bool { return t.Toolset == "" || t.Toolset == Toolset }

// address is the HTTP address of the tools.
func (t Target) address() string {
	if t.own() {
		return t.URL + "/mcp"
	}
	return t.URL + "/mcp/" + t.Toolset
}

// snippet is one thing to paste.
type snippet struct {
	over  string // http or stdio
	where string // where to paste it, in a sentence
	text  string
}

// object is JSON whose keys keep their order.
type object []member

type member struct {
	key   string
	value any
}

// MarshalJSON writes the members in their order.
func (o object) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	for i, m := range o {
		out.WriteByte("{,"[min(i, 1)])
		key, err := json.Marshal(m.key)
		if err != nil {
			return nil, fmt.Errorf("encode key: %w", err)
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", m.key, err)
		}
		out.Write(key)
		out.WriteByte(':')
		out.Write(value)
	}
	if len(o) == 0 {
		out.WriteByte('{')
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// Clients lists the known clients.
func Clients() []string { return []string{"claude-desktop", "claude-code", "cursor", "vscode"} }

// keyPlace is the placeholder for a key that a client cannot read from the environment.
const keyPlace = "YOUR_KEY"

// snippets are the configurations of one client.
func snippets(name string, t Target) []snippet {
	switch name {
	case "claude-desktop":
		return []snippet{
			{overStdio, "claude_desktop_config.json (Settings > Developer > Edit Config), then restart it:", pretty(object{{"mcpServers", object{{t.name(), stdio(t, keyPlace)}}}})},
			{overHTTP, "the same file; npx mcp-remote speaks to the farm over HTTP (the app's own connectors need a farm on the internet, with OAuth):", pretty(object{{"mcpServers", object{{t.name(), object{
				{"command", "npx"},
				{"args", []string{"-y", "mcp-remote", t.address(), "--allow-http", "--transport", "http-only", "--header", "Authorization:${AUTH}"}},
				{"env", object{{"AUTH", "Bearer " + keyPlace}}},
			}}}}})},
		}
	case "claude-code":
		return []snippet{
			{overHTTP, "a shell:", fmt.Sprintf("claude mcp add --transport http %s %s --header \"Authorization: Bearer $SANDFARM_API_KEY\"\n", t.name(), t.address())},
			{overHTTP, "or .mcp.json of a project:", pretty(object{{"mcpServers", object{{t.name(), web(t, "${SANDFARM_API_KEY:-}")}}}})},
			{overStdio, ".mcp.json of a project, for files of this machine:", pretty(object{{"mcpServers", object{{t.name(), stdio(t, "${SANDFARM_API_KEY:-}")}}}})},
		}
	case "cursor":
		return []snippet{
			{overHTTP, ".cursor/mcp.json of a project, or ~/.cursor/mcp.json:", pretty(object{{"mcpServers", object{{t.name(), object{
				{"url", t.address()}, {"headers", object{{"Authorization", "Bearer ${env:SANDFARM_API_KEY}"}}},
			}}}}})},
			{overStdio, "the same file, for files of this machine:", pretty(object{{"mcpServers", object{{t.name(), stdio(t, "${env:SANDFARM_API_KEY}")}}}})},
		}
	case "vscode":
		key := object{{"type", "promptString"}, {"id", "sandfarm-key"}, {"description", "API key of the Sandfarm (anything where it has none)"}, {"password", true}}
		return []snippet{
			{overHTTP, ".vscode/mcp.json of a project (or MCP: Open User Configuration):", pretty(object{{"servers", object{{t.name(), web(t, "${input:sandfarm-key}")}}}, {"inputs", []object{key}}})},
			{overStdio, "the same file, for files of this machine:", pretty(object{{"servers", object{{t.name(), append(object{{"type", "stdio"}}, stdio(t, "${input:sandfarm-key}")...)}}}, {"inputs", []object{key}}})},
		}
	}
	return nil
}

func web(t Target, key string) object {
	return object{{"type", "http"}, {"url", t.address()}, {"headers", object{{"Authorization", "Bearer " + key}}}}
}

func stdio(t Target, key string) object {
	args := []string{"mcp", "--root", t.Dir}
	if !t.own() {
		args = []string{"mcp", "--toolset", t.Toolset, "--root", t.Dir}
	}
	return object{
		{"command", t.Program},
		{"args", args},
		{"env", object{{"SANDFARM_URL", t.URL}, {"SANDFARM_API_KEY", key}}},
	}
}

func pretty(v any) string {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		panic(err) // strings always encode
	}
	return out.String()
}

func configCommand(streams verbs.Streams, connect Connect) *cobra.Command {
	var name, over, dir string
	which := Toolset
	c := &cobra.Command{
		Use:   "config",
		Short: "Print what to paste into an MCP client's configuration",
		Long: `Print what to paste into the configuration of an MCP client, with this farm's address and a place for the key. A farm
that was started without keys takes any.

Over HTTP a client talks to the farm's /mcp directly. Over stdio it starts "sandfarm mcp" on your machine, whose tools can use files
there, below --root. With --over only that configuration is printed to stdout, so that it can be written to a file.`,
		Example: `  sandfarm mcp config --client claude-code
  sandfarm mcp config --client cursor --over http > .cursor/mcp.json
  sandfarm mcp config --client claude-desktop --over stdio --root ~/Documents/work --url https://farm.example.com`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" {
				return &verbs.UsageError{Err: fmt.Errorf("--client is missing: it is one of %s", strings.Join(Clients(), ", ")), Command: cmd.CommandPath()}
			}
			if !slices.Contains(Clients(), name) {
				return &verbs.UsageError{Err: fmt.Errorf("--client %q is not known: it is one of %s", name, strings.Join(Clients(), ", ")), Command: cmd.CommandPath()}
			}
			if over != "" && over != overHTTP && over != overStdio {
				return &verbs.UsageError{Err: fmt.Errorf("--over %q is not known: it is http or stdio", over), Command: cmd.CommandPath()}
			}
			if err := known(which); err != nil {
				return &verbs.UsageError{Err: err, Command: cmd.CommandPath()}
			}
			t, err := target(connect, dir)
			if err != nil {
				return err
			}
			t.Toolset = which
			return show(streams, snippets(name, t), over)
		},
	}
	c.Flags().StringVar(&name, "client", "", "which client: "+strings.Join(Clients(), ", "))
	c.Flags().StringVar(&over, "over", "", "only the configuration for http or stdio")
	c.Flags().StringVar(&dir, "root", "", "directory of this machine whose files the tools may use over stdio (default: the current one)")
	c.Flags().StringVar(&which, "toolset", which, "which tools: "+strings.Join(toolsets(), ", "))
	_ = c.MarkFlagDirname("root")
	_ = c.RegisterFlagCompletionFunc("client", cobra.FixedCompletions(Clients(), cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("toolset", cobra.FixedCompletions(toolsets(), cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("over", cobra.FixedCompletions([]string{overHTTP, overStdio}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func target(connect Connect, dir string) (Target, error) {
	farm, err := connect()
	if err != nil {
		return Target{}, err
	}
	program, err := os.Executable()
	if err != nil {
		return Target{}, fmt.Errorf("find this program: %w", err)
	}
	one, err := openRoot(cmp.Or(dir, "."))
	if err != nil {
		return Target{}, err
	}
	return Target{URL: farm.URL(), Program: program, Dir: one.name}, one.open.Close()
}

// show prints all snippets with a heading each, or only the last one of a kind, which is the one for a file.
func show(streams verbs.Streams, all []snippet, over string) error {
	if over == "" {
		for i, s := range all {
			if i > 0 {
				fmt.Fprintln(streams.Out)
			}
			if _, err := fmt.Fprintf(streams.Out, "# over %s: %s\n\n%s", s.over, s.where, s.text); err != nil {
				return fmt.Errorf("print configuration: %w", err)
			}
		}
		return nil
	}
	for _, s := range slices.Backward(all) {
		if s.over == over {
			fmt.Fprintf(streams.Err, "sandfarm: this goes into %s\n", strings.TrimSuffix(s.where, ":"))
			if _, err := fmt.Fprint(streams.Out, s.text); err != nil {
				return fmt.Errorf("print configuration: %w", err)
			}
			return nil
		}
	}
	return fmt.Errorf("there is no configuration for %s", over)
}
