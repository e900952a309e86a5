package mcp_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	protocol "github.com/mark3labs/mcp-go/mcp"
)

func TestPromptsAreListedInBothEras(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	for _, era := range eras() {
		list, err := b.client(era).ListPrompts(t.Context(), protocol.ListPromptsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]string{}
		for _, p := range list.Prompts {
			for _, a := range p.Arguments {
				name := a.Name
				if a.Required {
					name += "*"
				}
				got[p.Name] = append(got[p.Name], name)
				if a.Description == "" {
					t.Errorf("%s of %s has no description", a.Name, p.Name)
				}
			}
			if p.Title == "" || p.Description == "" {
				t.Errorf("%s has no title or no description", p.Name)
			}
		}
		want := map[string][]string{"analyse_file": {"file*", "question"}, "plot_data": {"data*", "chart"}, "run_script": {"script*", "arguments"}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", era, diff)
		}
		// The newer revision says how long a list may be cached; clients of older revisions do not get this field.
		ttl, hinted := list.TTL()
		if modern := era == modern; hinted != modern || modern && (ttl != 60_000 || list.CacheScope != protocol.CacheScopePublic) {
			t.Errorf("%s: cached for %d ms, scope %q", era, ttl, list.CacheScope)
		}
	}
}

func TestPromptsNameTheToolsToUse(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	for _, era := range eras() {
		c := b.client(era)
		for name, test := range map[string]struct {
			args map[string]string
			want []string
		}{
			"analyse_file": {map[string]string{"file": "sales.csv", "question": "Which month was best?"}, []string{"sales.csv", "Which month was best?", "upload_file_to_sandbox", "execute_python_code"}},
			"plot_data":    {map[string]string{"data": "1, 2, 3"}, []string{"1, 2, 3", "plt.show()", "execute_python_code"}},
			"run_script":   {map[string]string{"script": "job.sh", "arguments": "--fast"}, []string{"job.sh", "--fast", "execute_terminal_command", "cancel_job"}},
		} {
			got, err := c.GetPrompt(t.Context(), protocol.GetPromptRequest{Params: protocol.GetPromptParams{Name: name, Arguments: test.args}})
			if err != nil {
				t.Fatalf("%s, %s: %v", era, name, err)
			}
			if len(got.Messages) != 1 || got.Messages[0].Role != protocol.RoleUser {
				t.Fatalf("%s, %s: %+v", era, name, got)
			}
			text := got.Messages[0].Content.(protocol.TextContent).Text
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("%s, %s does not say %q: %s", era, name, want, text)
				}
			}
		}
	}
}

func TestPromptsRefuseWrongArguments(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	for _, era := range eras() {
		c := b.client(era)
		for want, params := range map[string]protocol.GetPromptParams{
			"file is missing: give the file: a path in": {Name: "analyse_file"},
			"data is missing":          {Name: "plot_data", Arguments: map[string]string{"data": " "}},
			`no argument "language"`:   {Name: "run_script", Arguments: map[string]string{"script": "x", "language": "go"}},
			"no_such_prompt' not foun": {Name: "no_such_prompt"},
		} {
			if _, err := c.GetPrompt(t.Context(), protocol.GetPromptRequest{Params: params}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %s: %v", era, want, err)
			}
		}
	}
}

// Every tool that a prompt or the instructions name exists.
func TestPromptsNameOnlyExistingTools(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	c := b.client(modern)
	for name, args := range map[string]map[string]string{"analyse_file": {"file": "x"}, "plot_data": {"data": "x"}, "run_script": {"script": "x"}} {
		got, err := c.GetPrompt(t.Context(), protocol.GetPromptRequest{Params: protocol.GetPromptParams{Name: name, Arguments: args}})
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range strings.FieldsFunc(got.Messages[0].Content.(protocol.TextContent).Text, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
			if _, ok := canonical()[word]; strings.Count(word, "_") > 0 && !ok && word != "job_id" && word != "wait_seconds" {
				t.Errorf("%s names %s", name, word)
			}
		}
	}
}
