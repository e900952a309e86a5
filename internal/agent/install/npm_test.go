//go:build integration

package install_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// nodePackages returns an execution that installs Node packages.
func nodePackages(names ...string) agent.Spec {
	return agent.Spec{Kind: farm.KindInstall, Install: &agent.Install{Manager: farm.ManagerNpm, Packages: names}}
}

func TestInstallNodePackages(t *testing.T) {
	t.Parallel()
	a := agenttest.StartIndexed(t, "/usr/local/bin:/usr/bin:/bin", realIndex(t), nil)
	wanted := []string{"left-pad@1.3.0", "no-such-package-xyzzy-77", "is-odd", "is-odd@99", "../x", "cowsay@1.5.0"}
	ran := agenttest.Run(t, a.Client, nodePackages(wanted...))
	want := []farm.PackageOutcome{
		{Name: "left-pad", Requested: wanted[0], Status: farm.PackageInstalled},
		{Name: "no-such-package-xyzzy-77", Requested: wanted[1], Status: farm.PackageFailed},
		{Name: "is-odd", Requested: wanted[2], Status: farm.PackageInstalled},
		{Name: "is-odd", Requested: wanted[3], Status: farm.PackageFailed},
		{Name: "../x", Requested: wanted[4], Status: farm.PackageFailed},
		{Name: "cowsay", Requested: wanted[5], Status: farm.PackageInstalled},
	}
	if diff := cmp.Diff(want, ran.Outcome.Install, statusOnly); diff != "" {
		t.Fatalf("%s\n%+v\n%s%s", diff, ran.Outcome, ran.Stdout, ran.Stderr)
	}
	for i, part := range map[int]string{1: "not found in the npm registry", 3: `fits "is-odd@99"`, 4: "not the name of an npm package"} {
		if message := ran.Outcome.Install[i].Message; !strings.Contains(message, part) {
			t.Errorf("message %d: %q", i, message)
		}
	}
	ran = agenttest.Run(t, a.Client, agenttest.Commands(`node -e 'console.log(require("left-pad")(7, 3, "0"), require("is-odd")(3))'`, "cowsay moo"))
	if !strings.HasPrefix(ran.Stdout, "007 true\n") || !strings.Contains(ran.Stdout, "(oo)") {
		t.Fatalf("ran = %+v", ran)
	}
	list, err := a.Packages(t.Context())
	agenttest.Must(t, err)
	found := map[string]string{}
	for _, p := range list {
		if p.Manager == farm.ManagerNpm {
			found[p.Name] = p.Version
		}
	}
	if found["left-pad"] != "1.3.0" || found["is-odd"] == "" {
		t.Fatalf("packages = %v", found)
	}
	ran = agenttest.Run(t, a.Client, agenttest.Commands("cd && mkdir -p p && cd p && npm install left-pad 2>&1 && ls node_modules"))
	if !strings.Contains(ran.Stdout, "left-pad\n") {
		t.Fatalf("plain npm: %+v", ran)
	}
	if left, _ := filepath.Glob(a.Home + "/.install-*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	bare := agenttest.StartIndexed(t, t.TempDir(), realIndex(t), nil)
	ran = agenttest.Run(t, bare.Client, nodePackages("left-pad"))
	if ran.Outcome.Install[0].Message != "This image has no npm: create a sandbox with the image node." {
		t.Fatalf("no npm: %+v", ran.Outcome)
	}
	ran = agenttest.Run(t, bare.Client, packages("six"))
	if ran.Outcome.Install[0].Message != "This image has no Python." {
		t.Fatalf("no Python: %+v", ran.Outcome)
	}
}
