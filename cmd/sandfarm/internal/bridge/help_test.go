package bridge_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("the help has changed (go test -update writes it anew):\n%s", diff)
	}
}
