package verbs

import (
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The Python SDK has a list of its own, which must name the same files.
func TestThePythonSDKRefusesTheSameNames(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../../../sdk/python/src/sandfarm/_autoload.py")
	if err != nil {
		t.Fatal(err)
	}
	got, want := map[string]string{}, map[string]string{}
	for _, entry := range regexp.MustCompile(`(?m)^    "(.+)": "(.+)",$`).FindAllStringSubmatch(string(source), -1) {
		got[entry[1]] = entry[2]
	}
	for _, file := range loadedBy {
		want[file.pattern] = file.who
	}
	for _, module := range importedAtStart {
		want[module+"*"] = "Python runs it at every start"
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the names in sdk/python differ (-here +there):\n%s", diff)
	}
}
