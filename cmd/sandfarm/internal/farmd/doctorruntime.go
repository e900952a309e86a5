package farmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// gVisorRuntime is the name under which `make gvisor` registers gVisor.
const gVisorRuntime = "runsc"

// runtimes are the OCI runtimes that the settings name for sandboxes, the default first; standard is the engine's default.
func (s EngineSettings) runtimes(standard string) []string {
	names := append([]string{cmp.Or(s.Runtime, standard)}, s.Runtimes...)
	images, _ := s.imageRuntimes() // checked when they were loaded
	for _, name := range images {
		names = append(names, name)
	}
	slices.Sort(names[1:])
	return append(names[:1], slices.DeleteFunc(slices.Compact(names[1:]), func(name string) bool { return name == names[0] })...)
}

// doctorCheckpoints says whether sandboxes with gVisor can hibernate; err is the engine's refusal.
func doctorCheckpoints(runtime string, err error) Finding {
	if err != nil {
		return Finding{What: "hibernation", Status: StatusNote, Found: "sandboxes with the runtime " + runtime + " cannot hibernate: " + err.Error()}
	}
	return Finding{What: "hibernation", Status: StatusOK, Found: "sandboxes with the runtime " + runtime + " can hibernate"}
}

// doctorRuntimes runs a container with each OCI runtime that sandboxes may have.
func doctorRuntimes(ctx context.Context, s *Settings, e *engine.Engine, info engine.Info) []Finding {
	names := s.Engine.runtimes(info.DefaultRuntime)
	images, err := e.Images(ctx)
	var out []Finding
	for i, name := range names {
		f := Finding{What: "runtime " + name, Status: StatusOK, Found: "a container with it runs"}
		if i == 0 {
			f.Found += "; sandboxes that ask for no other have it"
		}
		switch {
		case !slices.Contains(info.Runtimes, name):
			f.Status, f.Found = StatusProblem, "the engine has only "+strings.Join(info.Runtimes, ", ")
			f.Advice = engine.RuntimeAdvice(name)
		case err != nil || len(images) == 0:
			f.Status, f.Found = StatusNote, "registered; not tried, since there is no sandbox image yet"
			f.Advice = "Build one (`sandfarm image build python`), and run doctor again."
		default:
			if err := e.TryRuntime(ctx, name, images[0].Ref); err != nil {
				f.Status, f.Found = StatusProblem, "a container with it does not run: "+err.Error()
				f.Advice = "Correct its entry in the engine's daemon.json. " + engine.RuntimeAdvice(name)
			}
		}
		out = append(out, f)
		if farm.GVisor(name) {
			out = append(out, doctorCheckpoints(name, e.CheckCheckpoints(ctx, name)))
		}
	}
	if !slices.ContainsFunc(names, farm.GVisor) {
		f := Finding{What: "gVisor", Status: StatusNote, Found: "not used: sandboxes share the kernel of the host"}
		f.Advice = "For a second layer of isolation run `make gvisor`, which registers runsc"
		if slices.Contains(info.Runtimes, gVisorRuntime) {
			f.Advice = "The engine has runsc"
		}
		f.Advice += fmt.Sprintf("; then set engine.runtime = %q, or engine.runtimes so that callers may choose it.", gVisorRuntime)
		out = append(out, f)
	}
	return out
}
