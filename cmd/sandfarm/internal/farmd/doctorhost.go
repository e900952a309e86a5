package farmd

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
)

// What the kernel has once for the host: an open file takes fileBytes of a sandbox's memory (one that is mapped needs no descriptor: 60,000
// took 23 MiB), a sandbox has at most terminals of its pseudo-terminals (the agent ends it beyond that), and the kernel keeps terminalReserve
// back (kernel.pty.reserve).
const (
	fileBytes       = 384
	terminals       = 128
	terminalReserve = 1024
)

// doctorHost checks numbers that the kernel has once for the host, and that sandboxes share. proc is the directory of sysctls,
// /proc/sys; sandboxes is how many sandboxes the host should stand, with memoryMB in all.
func doctorHost(proc string, sandboxes, memoryMB int) []Finding {
	return []Finding{
		atLeast(proc, "fs/file-max", "open files", uint64(memoryMB)<<20/fileBytes, //nolint:gosec // positive
			"The memory of sandboxes is enough for more, and then no program of the host can open a file. Run sysctl fs.file-max=9223372036854775807, and write it to /etc/sysctl.d."),
		atLeast(proc, "kernel/pty/max", "pseudo-terminals", uint64(sandboxes)*terminals+terminalReserve, //nolint:gosec // positive
			fmt.Sprintf("%d sandboxes may have 128 each. When the host has none left, commands in kernels (!ls) fail in all of them. Run sysctl kernel.pty.max=65536, and write it to /etc/sysctl.d.", sandboxes)),
		timestamps(proc),
	}
}

// timestamps checks that sockets cannot keep what they sent, by asking when it was sent: each sandbox has that setting, or else the host.
func timestamps(proc string) Finding {
	f := Finding{What: "timestamps", Status: StatusOK}
	kernel, _ := os.ReadFile(filepath.Join(proc, "kernel/osrelease")) //nolint:gosec // a path below /proc/sys
	if f.Found = strings.TrimSpace(string(kernel)); engine.OwnTimestamps(f.Found) {
		f.Found = "sandboxes have net.core.tstamp_allow_data = 0 (Linux " + f.Found + ")"
		return f
	}
	text, err := os.ReadFile(filepath.Join(proc, "net/core/tstamp_allow_data")) //nolint:gosec // a path below /proc/sys
	switch value := strings.TrimSpace(string(text)); {
	case err != nil:
		return unknown(f.What, "net/core/tstamp_allow_data")
	case value != "0":
		f.Status = StatusNote
		f.Advice = "The sockets of a sandbox can keep some MiB each of what they sent, in memory that no cgroup is charged for. Run sysctl net.core.tstamp_allow_data=0, and write it to /etc/sysctl.d. Since Linux 6.13 each sandbox has the setting."
		fallthrough
	default:
		f.Found = "net.core.tstamp_allow_data = " + value
	}
	return f
}

func unknown(what, sysctl string) Finding {
	return Finding{What: what, Status: StatusNote, Found: "the limit of the host is unknown", Advice: "Check " + strings.ReplaceAll(sysctl, "/", ".") + " on the engine's host."}
}

// atLeast compares a sysctl with what is needed.
func atLeast(proc, name, what string, need uint64, advice string) Finding {
	f := Finding{What: what, Status: StatusOK}
	text, err := os.ReadFile(filepath.Join(proc, name)) //nolint:gosec // a path below /proc/sys
	if err != nil {
		return unknown(what, name)
	}
	has, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	f.Found = fmt.Sprintf("%s = %d", strings.ReplaceAll(name, "/", "."), has)
	if err != nil || has < need {
		f.Status, f.Advice = StatusNote, advice
	}
	return f
}

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

// doctorIndex requests a project from the package indexes as a sandbox would.
func doctorIndex(ctx context.Context, s *Settings) []Finding {
	ctx, done := context.WithTimeout(ctx, doctorTimeout)
	defer done()
	python := Finding{What: "Python index", Status: StatusOK, Found: s.Index.PyPIURL}
	node := Finding{What: "npm registry", Status: StatusOK, Found: s.Index.NpmURL}
	server, err := index.Serve(ctx, s.Index)
	if err != nil {
		python.Status, python.Found, python.Advice = StatusProblem, err.Error(), "Correct the settings under [index]."
		return []Finding{python}
	}
	defer func() { _ = server.Close() }()
	if err := fetch(ctx, server.URL()+"pip/"); err != nil {
		python.Status, python.Found = StatusNote, fmt.Sprintf("%s: %v", s.Index.PyPIURL, err)
		python.Advice = "Sandboxes get packages only from the cache, and images cannot be built. Set SANDFARM_PYPI_INDEX_URL to an index that this host can reach."
	}
	if err := fetch(ctx, server.NpmURL()+"npm"); err != nil {
		node.Status, node.Found = StatusNote, fmt.Sprintf("%s: %v", s.Index.NpmURL, err)
		node.Advice = "Only images with Node need it. Set SANDFARM_NPM_REGISTRY to a registry that this host can reach."
	}
	return []Finding{python, node}
}

func fetch(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{}).Do(request)
	if err != nil {
		return fmt.Errorf("it does not answer within %s", doctorTimeout)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it does not answer like an index (%s)", answer.Status)
	}
	return nil
}

// doctorQuotas checks whether a tenant without quotas of its own has bounds. It says nothing of a farm without keys in its settings,
// which may have one tenant.
func doctorQuotas(s *Settings) []Finding {
	if len(s.API.Keys) == 0 && !s.API.RequireKeys {
		return nil
	}
	quotas := s.Limits.TenantQuotas()
	queued := fmt.Sprintf("%s is %d without a value of the tenant's own (sandfarm tenant set)", farm.QuotaQueued, quotas.MaxQueued) // it is no setting
	var unbounded []string
	for _, name := range farm.QuotaNames() {
		switch name {
		case farm.QuotaCPUs, farm.QuotaGPUs, farm.QuotaRunning: // bounded by those of sandboxes and memory, by nodes, or by worker.slots
		default:
			if quotas.Get(name) == farm.NoQuota {
				unbounded = append(unbounded, string(name))
			}
		}
	}
	if len(unbounded) == 0 {
		return []Finding{{What: "quotas", Status: StatusOK, Found: "tenants without quotas of their own have bounds; " + queued}}
	}
	return []Finding{{
		What: "quotas", Status: StatusNote, Found: "no bound for tenants without quotas of their own: " + strings.Join(unbounded, ", "),
		Advice: "Set quotas.*, or those of each tenant (sandfarm tenant set), unless all tenants trust each other: one can fill every node. " + queued + ".",
	}}
}
