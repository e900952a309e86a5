package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestEveryPackageAskedForIsReported(t *testing.T) {
	t.Parallel()
	asked := &farm.InstallRequest{Manager: "pip", Packages: []string{"Six", "pandas>=2", "lost"}}
	reported := []farm.PackageOutcome{
		{Name: "made-up", Requested: "never asked for", Version: "1", Status: farm.PackageInstalled},
		{Name: "pandas", Requested: "pandas>=2", Status: "wonderful", Message: strings.Repeat("x", 10_000)},
		{Name: "another-name", Requested: "Six", Version: strings.Repeat("1", 1000), Status: farm.PackageInstalled},
	}
	for name, c := range map[string]struct {
		outcome agent.Outcome
		lost    string
	}{
		"Ended":       {agent.Outcome{}, "without a report"},
		"TimedOut":    {agent.Outcome{TimedOut: true}, "after 60 seconds"},
		"Canceled":    {agent.Outcome{Canceled: true}, "cancelled"},
		"OutOfMemory": {agent.Outcome{OutOfMemory: true}, "memory_mb"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.outcome.Install = reported
			got := reportAsked(asked, &c.outcome, time.Minute)
			if len(got) != 3 {
				t.Fatalf("%d packages are reported, want 3", len(got))
			}
			if p := got[0]; p.Name != "six" || p.Requested != "Six" || p.Status != farm.PackageInstalled || len(p.Version) > 300 {
				t.Errorf("first: %+v", p)
			}
			if p := got[1]; p.Name != "pandas" || p.Status != farm.PackageFailed || len(p.Message) > 5000 {
				t.Errorf("second: %+v", p)
			}
			if p := got[2]; p.Name != "lost" || p.Status != farm.PackageFailed || !strings.Contains(p.Message, c.lost) || !strings.Contains(p.Message, "lost was not") {
				t.Errorf("third: %+v", p)
			}
		})
	}
}

func TestWhatCodeNeedsIsBounded(t *testing.T) {
	t.Parallel()
	o := &agent.Outcome{Install: []farm.PackageOutcome{{Name: "--flag", Status: farm.PackageInstalled}, {Name: "PyYAML", Requested: "yaml", Why: strings.Repeat("w", 1000)}}}
	got := reportNeeded(o)
	if len(got) != 1 || got[0].Name != "pyyaml" || len(got[0].Why) > 300 {
		t.Errorf("reported %+v", got)
	}
	for n, want := range map[int]int{maxReported - 1: maxReported - 1, maxReported: maxReported, maxReported + 1: maxReported} {
		o.Install = make([]farm.PackageOutcome, n)
		for i := range o.Install {
			o.Install[i].Name = "p"
		}
		if got := len(reportNeeded(o)); got != want {
			t.Errorf("%d of %d are reported, want %d", got, n, want)
		}
	}
}

func TestKnownPackagesCanBeTrue(t *testing.T) {
	t.Parallel()
	got := known([]farm.Package{
		{Name: "six", Version: "1.17.0", Manager: "pip"},
		{Name: "@types/node", Version: "20", Manager: "npm"},
		{Name: "Not_Normal", Version: "1", Manager: "pip"},
		{Name: "--index-url=x", Version: "1", Manager: "pip"},
		{Name: "long", Version: strings.Repeat("1", 1000), Manager: "pip"},
	})
	want := []farm.Package{{Name: "six", Version: "1.17.0", Manager: "pip"}, {Name: "@types/node", Version: "20", Manager: "npm"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	many := make([]farm.Package, maxPackages+1)
	for i := range many {
		many[i] = farm.Package{Name: "p", Version: "1", Manager: "pip"}
	}
	if got := len(known(many)); got != maxPackages {
		t.Errorf("%d packages are taken, want %d", got, maxPackages)
	}
}

func TestAnInstallNamesItsSandbox(t *testing.T) {
	t.Parallel()
	packages := []farm.PackageOutcome{{Message: "restart it (POST /v1/sandboxes/{id}/restart)"}, {Message: "{id} is kept elsewhere"}}
	notes := []string{"POST /v1/sandboxes/{id}/restart"}
	nameSandbox("sbx_1", packages, notes)
	if packages[0].Message != "restart it (POST /v1/sandboxes/sbx_1/restart)" || packages[1].Message != "{id} is kept elsewhere" || notes[0] != "POST /v1/sandboxes/sbx_1/restart" {
		t.Errorf("%+v %v", packages, notes)
	}
}

func TestLastLineOfAnInstaller(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "",
		"Resolved 3 packages\n":             "Resolved 3 packages",
		"a\nDownloading numpy (16 MiB)\n\n": "Downloading numpy (16 MiB)",
		"10%\r20%\r30%":                     "30%",
		"\x1b[32mgreen":                     "[32mgreen",
		"\xff\xfe":                          "",
	} {
		if got := lastLine([]byte(text)); got != want {
			t.Errorf("lastLine(%q) = %q, want %q", text, got, want)
		}
	}
}
