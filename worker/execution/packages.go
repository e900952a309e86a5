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
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Bounds on what an install may report: the agent speaks from hostile ground.
const (
	maxReported     = 500 // packages that code may turn out to need
	maxPackageText  = 256
	maxPackageNote  = 4 << 10
	maxInstallNotes = 100
	maxPackages     = 20_000 // packages of a sandbox
	maxFrameValues  = 1 << 18
)

func readOutcome(payload []byte) (*agent.Outcome, error) {
	var outcome agent.Outcome
	if agent.Values(payload) > maxFrameValues {
		return nil, fmt.Errorf("%w: an outcome of more than %d values", ErrProtocol, maxFrameValues)
	}
	if err := json.Unmarshal(payload, &outcome); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return &outcome, nil
}

// reportAsked gives each package that was asked for its outcome, in that order, whatever the agent left out or made up.
func reportAsked(asked *farm.InstallRequest, o *agent.Outcome, timeout time.Duration) []farm.PackageOutcome {
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

// unreported says why nothing is known of a package.
func unreported(name string, o *agent.Outcome, timeout time.Duration) string {
	switch {
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

// reportNeeded gives what was installed for code.
func reportNeeded(o *agent.Outcome) []farm.PackageOutcome {
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

// checked bounds what the agent says of a package.
func checked(p farm.PackageOutcome) farm.PackageOutcome {
	if p.Status != farm.PackageInstalled {
		p.Status = farm.PackageFailed
	}
	p.Name, p.Requested, p.Version = plain(p.Name, maxPackageText), plain(p.Requested, maxPackageText), plain(p.Version, maxPackageText)
	p.Message, p.Why = plain(p.Message, maxPackageNote), plain(p.Why, maxPackageText)
	if !versionForm.MatchString(p.Version) {
		p.Version = ""
	}
	return p
}

// versionForm is what versions look like, of whichever manager. It is compiled once and never changes.
var versionForm = regexp.MustCompile(`^[A-Za-z0-9.+!_~-]{0,256}$`)

// plain is clip without what a terminal would act on: line ends and tabs are the only control characters that it leaves.
func plain(s string, limit int) string {
	return clip(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, s), limit)
}

// named puts a sandbox's id where the agent, which does not know it, has left a place for it.
func named(text, sandbox string) string {
	return strings.ReplaceAll(text, "/v1/sandboxes/{id}/", "/v1/sandboxes/"+sandbox+"/")
}

// nameSandbox does so in everything that an install says.
func nameSandbox(sandbox string, packages []farm.PackageOutcome, notes []string) {
	for i := range packages {
		packages[i].Message = named(packages[i].Message, sandbox)
	}
	for i := range notes {
		notes[i] = named(notes[i], sandbox)
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
			return Outcome{State: farm.JobCompleted, Result: &farm.Result{Packages: known(found)}}, nil
		}
	}
	if gone, ok := x.node.Gone(ctx, t.Sandbox); ok {
		return Outcome{}, gone
	}
	return Outcome{}, fmt.Errorf("look packages up: %w", err)
}

// known keeps the packages whose names and versions can be true.
func known(found []farm.Package) []farm.Package {
	found = found[:min(len(found), maxPackages)]
	return slices.DeleteFunc(found, func(p farm.Package) bool {
		name, ok := farm.RequirementName(p.Manager, p.Name)
		return !ok || name != p.Name || len(p.Name) > maxPackageText || p.Version == "" || !versionForm.MatchString(p.Version)
	})
}
