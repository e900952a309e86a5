package bridge

import (
	"os"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestTheManualShowsWhatConfigPrints checks that docs/mcp.md and the pages of the toolsets show what the program prints.
func TestTheManualShowsWhatConfigPrints(t *testing.T) {
	t.Parallel()
	for toolset, page := range map[string]string{
		Toolset: "mcp.md", "sandbox": "coming-from/mcp-sandbox.md", "python-env": "coming-from/python-mcp-sandbox.md",
		"docker-sandbox": "coming-from/docker-code-sandbox-mcp.md", "notebook": "coming-from/llm-python-code-sandbox.md",
	} {
		manual, err := os.ReadFile("../../../../docs/" + page)
		testbed.Must(t, err)
		target := Target{URL: "http://127.0.0.1:8000", Program: "/usr/local/bin/sandfarm", Dir: "/home/you/project", Toolset: toolset}
		for _, name := range Clients() {
			all := snippets(name, target)
			if len(all) < 2 {
				t.Errorf("%s has %d configurations", name, len(all))
			}
			for _, s := range all {
				if !strings.Contains(string(manual), "\n"+s.text+"```") {
					t.Errorf("docs/%s does not show, for %s over %s:\n%s", page, name, s.over, s.text)
				}
			}
		}
	}
}
