package execution

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Bounds on what an install may report. The agent is not trusted.
const (
	maxReported     = 500 // packages that imports may need
	maxPackageText  = 256
	maxPackageNote  = 4 << 10
	maxInstallNotes = 100
	maxPackages     = 20_000 // packages of a sandbox
	maxFrameValues  = 1 << 18
)

func readOutcome(payload []byte) (*agent.Outcome, error) {
	var outcome agent.Outcome
	if budget.Values(payload) > maxFrameValues {
		return nil, fmt.Errorf("%w: an outcome of more than %d values", ErrProtocol, maxFrameValues)
	}
	if err := json.Unmarshal(payload, &outcome); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return &outcome, nil
}

// reportRequested returns the outcome of each requested package, in the order of the request, whatever the agent left out or made up.
func reportRequested(asked *farm.InstallRequest, o *agent.Outcome, timeout time.Duration) []farm.PackageOutcome {
	list := make([]farm.PackageOutcome, 0, len(asked.Packages))
	for _, requested := range asked.Packages {
		name, _ := farm.RequirementName(asked.Manager, requested)
		outcome := farm.PackageOutcome{Name: name, Requested: requested, Status: farm.PackageFailed, Message: unreported(name, o, timeout)}
		i := slices.IndexFunc(o.Install, func(p farm.PackageOutcome) bool { return p.Requested == requested })
		if i >= 0 {
			outcome = checked(o.Install[i])
			outcome.Name, outcome.Requested = name, requested
		}
		list = append(list, outcome)
	}
	return list
}

// unreported says why the agent reported nothing on a package.
func unreported(name string, o *agent.Outcome, timeout time.Duration) string {
	switch {
	case o.OutputGone:
		return name + ": the sandbox no longer knows how this installation ended. GET /v1/sandboxes/{id}/packages lists what is installed."
	case o.TimedOut:
		return fmt.Sprintf("%s was not installed: the time was up after %g seconds.", name, timeout.Seconds())
	case o.Canceled:
		return name + " was not installed: the job was cancelled."
	case o.OutOfMemory:
		return name + " was not installed: the sandbox's memory limit was reached. Create a sandbox with more memory_mb."
	default:
		return name + " was not installed: the installer ended without a report."
	}
}

// reportImports returns the outcomes of packages that were installed for imports.
func reportImports(o *agent.Outcome) []farm.PackageOutcome {
	list := make([]farm.PackageOutcome, 0, min(len(o.Install), maxReported))
	for _, outcome := range o.Install[:min(len(o.Install), maxReported)] {
		outcome = checked(outcome)
		if name, ok := farm.RequirementName(farm.ManagerPip, outcome.Name); ok {
			outcome.Name = name
			list = append(list, outcome)
		}
	}
	return list
}

// checked bounds what the agent reports on a package.
func checked(p farm.PackageOutcome) farm.PackageOutcome {
	if p.Status != farm.PackageInstalled {
		p.Status = farm.PackageFailed
	}
	p.Name, p.Requested, p.Version = plain(p.Name, maxPackageText), plain(p.Requested, maxPackageText), plain(p.Version, maxPackageText)
	p.Message, p.Why = plain(p.Message, maxPackageNote), plain(p.Why, maxPackageText)
	if !versionPattern.MatchString(p.Version) {
		p.Version = ""
	}
	return p
}

// versionPattern matches versions of all package managers.
var versionPattern = regexp.MustCompile(`^[A-Za-z0-9.+!_~-]{0,256}$`)

// plain is clip that also removes control characters, but for line ends and tabs, so that a terminal only shows the text.
func plain(s string, limit int) string {
	return clip(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, s), limit)
}

// withSandboxID fills in the id of a sandbox, which the agent does not know, in the paths of a text.
func withSandboxID(text, sandbox string) string {
	return strings.ReplaceAll(text, "/v1/sandboxes/{id}/", "/v1/sandboxes/"+sandbox+"/")
}

// nameSandbox fills in the id of a sandbox in all texts of an install.
func nameSandbox(sandbox string, packages []farm.PackageOutcome, notes []string) {
	for i := range packages {
		packages[i].Message = withSandboxID(packages[i].Message, sandbox)
	}
	for i := range notes {
		notes[i] = withSandboxID(notes[i], sandbox)
	}
}

func clipNotes(notes []string) []string {
	out := make([]string, 0, min(len(notes), maxInstallNotes))
	for _, note := range notes[:min(len(notes), maxInstallNotes)] {
		out = append(out, plain(note, maxPackageNote))
	}
	return out
}

// Packages lists what is installed in a sandbox. Its job does not wait in the sandbox's FIFO.
func (x *Runner) Packages(ctx context.Context, t Task) (Outcome, error) {
	c, err := x.node.Connect(ctx, t.Sandbox)
	if err == nil {
		var found []farm.Package
		if found, err = c.Packages(ctx); err == nil {
			return Outcome{State: farm.JobCompleted, Result: &farm.Result{Packages: valid(found)}}, nil
		}
	}
	if gone, ok := x.node.Gone(ctx, t.Sandbox); ok {
		return Outcome{}, gone
	}
	return Outcome{}, fmt.Errorf("list packages: %w", err)
}

// valid keeps the packages whose names and versions are well-formed.
func valid(found []farm.Package) []farm.Package {
	found = found[:min(len(found), maxPackages)]
	return slices.DeleteFunc(found, func(p farm.Package) bool {
		name, ok := farm.RequirementName(p.Manager, p.Name)
		return !ok || name != p.Name || len(p.Name) > maxPackageText || p.Version == "" || !versionPattern.MatchString(p.Version)
	})
}
