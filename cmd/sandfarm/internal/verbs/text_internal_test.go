package verbs

import (
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestPathsAreShortenedInTheirMiddle(t *testing.T) {
	t.Parallel()
	const long = "results/2026/with/many/folders/on/the/way/report-of-today.pdf"
	head := []string{"SIZE", "PATH"}
	for name, test := range map[string]struct {
		head  []string
		width int
		path  string
		want  string
	}{
		"Fits":        {head, 80, long, long},
		"JustFits":    {head, 6 + len(long), long, long},
		"OneTooMany":  {head, 5 + len(long), long, "results/2026/with/m…y/folders/on/the/way/report-of-today.pdf"},
		"Narrow":      {head, 40, long, "results/202…" + long[len(long)-22:]},
		"VeryNarrow":  {head, 10, long, "results…" + long[len(long)-16:]},
		"Short":       {head, 10, "a.txt", "a.txt"},
		"OtherColumn": {[]string{"SIZE", "ID"}, 10, long, long},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := [][]string{{"10 B", test.path}}
			fitPaths(test.head, rows, test.width)
			testbed.Diff(t, "path", test.want, rows[0][1])
		})
	}
}

func TestUntilHasTheDayOfWhatIsFar(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 23, 0, 0, 0, time.FixedZone("here", 2*3600))
	for left, want := range map[time.Duration]string{
		-time.Second: "over", 0: "over", time.Second: "in 1s", 90 * time.Minute: "in 1h", 48*time.Hour - time.Minute: "in 47h",
		30*24*time.Hour - 5*time.Second: "in 30d (2026-12-26)", time.Hour - time.Second: "in 1h",
		48 * time.Hour: "in 2d (2026-11-28)", 49 * time.Hour: "in 2d (2026-11-29)", 29 * 24 * time.Hour: "in 29d (2026-12-25)",
	} {
		if got := until(now.Add(left).UTC(), now); got != want {
			t.Errorf("in %s: %q, want %q", left, got, want)
		}
	}
}

func TestErrorsOfPairsHaveTheFormOfTheHelp(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	for _, test := range []struct {
		flag, arg, want string
		lookup          func(string) string
	}{
		{"--label", "=foo", `"=foo" does not have the form KEY=VALUE`, nil},
		{"--env", "=foo", `"=foo" does not have the form NAME=VALUE`, none},
		{"--env", "FOO:1", `"FOO:1" does not have the form NAME=VALUE`, none},
		{"--env", "FOO 1", `"FOO 1" does not have the form NAME=VALUE`, none},
		{"--env", "FOO", "FOO: the variable FOO has no value here; give it one with FOO=VALUE", none},
	} {
		if _, err := pairs(test.flag, []string{test.arg}, test.lookup); err == nil || !strings.HasPrefix(err.Error(), test.flag+" "+test.want) {
			t.Errorf("%v, want %s %s", err, test.flag, test.want)
		}
	}
}

func TestFieldsOfTheFarmAreFlagsHere(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"It was stopped. timeout_seconds sets a longer timeout":         "It was stopped. --timeout sets a longer timeout",
		"resources.memory_mb is 5; it must be from 64 to 4096":          "--memory is 5m; it must be from 64m to 4g",
		"resources.disk_mb is 102398976; it must be from 16 to 65536":   "--disk is 99999g; it must be from 16m to 64g",
		"ttl_seconds is 2; it must be from 5 to 604800":                 "--ttl is 2s; it must be from 5s to 7d",
		"timeout_seconds is 0; it must be from 1 to 5400":               "--timeout is 0; it must be from 1s to 90m",
		"resources.pids is 2; it must be from 16 to 4096":               "--pids is 2; it must be from 16 to 4096",
		"No worker of this farm offers a GPU: leave gpu out.":           "No worker of this farm offers a GPU: leave --gpu out.",
		"Create a sandbox with more memory_mb.":                         "Create a sandbox with more --memory.",
		`use allowlist and name the hosts in allow_hosts, or packages`:  `use allowlist and name the hosts in --allow-host, or packages`,
		"the hosts of allow_hosts (none), only":                         "the hosts of --allow-host (none), only",
		`packages[0] is "a b": give a name`:                             `package 1 is "a b": give a name`,
		"There is no API key x. GET /v1/keys lists them.":               `There is no API key x. "sandfarm key ls" lists them.`,
		"No live worker uses node x; GET /v1/workers names the nodes.":  `No live worker uses node x; "sandfarm workers" names the nodes.`,
		"Resume it first (POST /v1/sandboxes/sbx_1/resume); code":       `Resume it first ("sandfarm sandbox resume sbx_1"); code`,
		"the setting limits.memory_mb":                                  "the setting limits.memory_mb",
		"max_memory_mb is used up, my_timeout_seconds timeout_seconds2": "max_memory_mb is used up, my_timeout_seconds timeout_seconds2",
		"more disk_mb; files count against memory_mb, too":              "more --disk; files count against --memory, too",
		"it may have: 64 (pids), with those" + farm.MorePIDs:            "it may have: 64 (--pids), with those, or create a sandbox with more --pids",
		"install it (POST /v1/sandboxes/sbx_1/packages), or":            `install it ("sandfarm packages install sbx_1 NAME"), or`,
		"it (POST /v1/sandboxes/sbx_1/packages with manager npm).":      `it ("sandfarm packages install sbx_1 NAME" with --manager npm).`,
		"ended. GET /v1/sandboxes/sbx_1/packages lists what is":         `ended. "sandfarm packages ls sbx_1" lists what is`,
		"upload it first " + farm.UploadWays:                            "upload it first (sandfarm cp)",
		"add a host there" + farm.AllowLater:                            "add a host there, for a running sandbox by sandfarm sandbox allow",
		"or give a command its input (echo yes | …)." + farm.AskElsewhere: `or give a command its input inside its line ("echo yes | …"). Environment variables (-e) pass values, too. ` +
			"In a sandbox that stays open, sandfarm exec -i ID COMMAND passes on the input that it has itself, and a program that must ask runs in a terminal " +
			"(Terminal on its page of the dashboard, sandfarm ssh, sandfarm exec -it).",
		"of the same name (packages), or run with auto_install.": "of the same name (--package), or run with --auto-install.",
		"read timeout_seconds.txt":                               "read timeout_seconds.txt",
	} {
		if got := asFlags(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestEventsInWords(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]wire.FleetEvent{
		"worker started":                    {Kind: "worker_started"},
		"worker lost, 3 jobs taken over":    {Kind: "worker_lost", Jobs: 3},
		"worker lost, 1 job taken over":     {Kind: "worker_lost", Jobs: 1},
		"node ended, 1 sandbox lost":        {Kind: "node_ended", Sandboxes: 1},
		"node ended, 2 sandboxes lost":      {Kind: "node_ended", Sandboxes: 2},
		"node drained: hibernated":          {Kind: "node_drained", Detail: "hibernated"},
		"worker problem: no engine answers": {Kind: "worker_problem", Detail: "no engine answers"},
	} {
		if got := happened(e); got != want {
			t.Errorf("%q instead of %q", got, want)
		}
	}
}
