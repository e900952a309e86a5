package config_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/config"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

var setting = regexp.MustCompile(`(?m)^#([^ #])`)

func TestExampleChangesNothing(t *testing.T) {
	t.Parallel()
	var got target
	testbed.Must(t, config.Load(&got, config.Options{File: write(t, config.Example(&target{})), Environ: []string{}}))
	testbed.Diff(t, "settings", defaultTarget(), got)
}

func TestExampleWithEveryLineInUseGivesTheDefaults(t *testing.T) {
	t.Parallel()
	text := setting.ReplaceAllString(config.Example(&target{}), "$1")
	text = strings.Replace(text, `tenant = ""`, `tenant = "t-a"`, 1)
	var got target
	if err := config.Load(&got, config.Options{File: write(t, text), Environ: []string{}}); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	want := defaultTarget()
	want.API.Keys = []key{{Tenant: "t-a", Weight: 7}}
	want.API.Owners = []tenant{}
	testbed.Diff(t, "settings", want, got)
}

func TestExampleText(t *testing.T) {
	t.Parallel()
	type small struct {
		Level string   `default:"say \"hi\"\\\n" doc:"One.\nTwo." oneof:"a b"`
		Names []string `default:"x,y"`
		In    struct {
			N int `default:"3" doc:"How many." max:"4"`
		} `doc:"Inside."`
	}
	want := `
# One.
# Two.
# Allowed: "a", "b". Environment: SANDFARM_LEVEL
#level = "say \"hi\"\\\u000A"

# Environment: SANDFARM_NAMES
#names = ["x", "y"]

# Inside.
[in]

# How many.
# Allowed: at most 4. Environment: SANDFARM_IN_N
#n = 3
`
	_, got, _ := strings.Cut(config.Example(&small{}), "this file.\n")
	testbed.Diff(t, "example", want, got)
}

func TestNames(t *testing.T) {
	t.Parallel()
	got := config.Names(&target{})
	if len(got) != 16 {
		t.Fatalf("%d settings: %+v", len(got), got)
	}
	want := []config.Setting{
		{Key: "log_level", Env: "SANDFARM_LOG_LEVEL", Type: "text", Default: "info", Allowed: `"debug", "info", "warn"`, Doc: "What is logged."},
		{Key: "api.listen", Env: "SANDFARM_API_LISTEN", Type: "text", Default: "127.0.0.1:8000", Doc: "Where to listen."},
		{Key: "api.timeout", Env: "SANDFARM_API_TIMEOUT", Type: "duration", Default: "30s", Allowed: "1s to 1h", Doc: "How long."},
		{Key: "api.hosts", Env: "SANDFARM_API_HOSTS", Type: "list of text", Default: "localhost, 127.0.0.1", Doc: "Names."},
		{Key: "api.keys", Type: "list of tables", Doc: "Keys."},
	}
	testbed.Diff(t, "settings", want, got[:5])
	if last := got[15]; last.Key != "worker.file_only" || last.Env != "" || got[14].Env != "SANDFARM_PYPI_INDEX_URL" {
		t.Errorf("last settings = %+v", got[14:])
	}
}

func TestMarkdownEscapesCells(t *testing.T) {
	t.Parallel()
	got := config.Markdown(&struct {
		A string `doc:"this | that"`
	}{})
	if want := "| `a` | `SANDFARM_A` | text |  | this \\| that |\n"; !strings.HasSuffix(got, want) {
		t.Errorf("table = %q, want it to end with %q", got, want)
	}
}
