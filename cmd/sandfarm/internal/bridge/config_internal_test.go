package bridge

import (
	"os"
	"strings"
	"testing"
)

// TestTheManualShowsWhatConfigPrints keeps docs/mcp.md to what the program prints.
func TestTheManualShowsWhatConfigPrints(t *testing.T) {
	t.Parallel()
	manual, err := os.ReadFile("../../../../docs/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	target := Target{URL: "http://127.0.0.1:8000", Program: "/usr/local/bin/sandfarm", Dir: "/home/you/project"}
	for _, name := range Clients() {
		all := snippets(name, target)
		if len(all) < 2 {
			t.Errorf("%s has %d configurations", name, len(all))
		}
		for _, s := range all {
			if !strings.Contains(string(manual), "\n"+s.text+"```") {
				t.Errorf("docs/mcp.md does not show, for %s over %s:\n%s", name, s.over, s.text)
			}
		}
	}
}
