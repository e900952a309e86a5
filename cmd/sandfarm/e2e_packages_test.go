//go:build integration

package main_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// packageFarm is a farm with a package index of the test.
type packageFarm struct {
	*farmProcess
	up *upstream
}

// in is the farm for a subtest, whose failures it reports.
func (f *packageFarm) in(t *testing.T) *packageFarm {
	process := *f.farmProcess
	process.t = t
	return &packageFarm{farmProcess: &process, up: f.up}
}

func TestPackages(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	// With a memory limit, Go returns free memory to the system at once. The budget is that of a process without one.
	f := &packageFarm{up: up, farmProcess: newFarm(t, append(up.env(), "SANDFARM_WORKER_AUTO_INSTALL_DENY=denied,De_Nied.two", "GOMEMLIMIT=150MiB", "SANDFARM_MEMORY_BUDGET_MB=1024")...)}
	f.run(f.sandbox(wire.CreateRequest{}).ID, "print(1)") // warm up
	goroutines := f.metric("go_goroutines")
	t.Run("All", func(t *testing.T) {
		for name, test := range map[string]func(*packageFarm, *testing.T){
			"Builds": (*packageFarm).builds, "Full": (*packageFarm).fullInstalls, "NoNetwork": (*packageFarm).noNetwork,
			"Requirements": (*packageFarm).requirements, "Imports": (*packageFarm).imports, "Status": (*packageFarm).status,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(f.in(t), t)
			})
		}
	})
	for sandbox, err := range f.Sandboxes(t.Context(), client.SandboxFilter{}) {
		testbed.Must(t, err)
		if sandbox.State != "ready" && sandbox.State != "busy" {
			continue
		}
		if _, err := f.Close(t.Context(), sandbox.ID, client.WithWait(30*time.Second)); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	// Idle connections to S3 and the index stay open for a while. A leak of one goroutine for each install would be far more.
	until(t.Context(), t, "the goroutines end", time.Minute, func() bool { return f.metric("go_goroutines") <= goroutines+60 })
	if memory := f.metric("process_resident_memory_bytes"); memory > 256<<20 {
		t.Errorf("the farm has %g MiB of memory after the installs", memory/(1<<20))
	}
}

// metric reads a metric of the farm.
func (f *farmProcess) metric(name string) float64 {
	f.t.Helper()
	for line := range strings.Lines(string(download(f.t, f.url+"/metrics"))) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			figure, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			testbed.Must(f.t, err)
			return figure
		}
	}
	f.t.Fatalf("there is no metric %s", name)
	return 0
}

// install installs packages and returns the finished job.
func (f *packageFarm) install(box string, packages ...string) wire.Job {
	f.t.Helper()
	job, err := f.Install(f.t.Context(), box, wire.PackagesRequest{Packages: packages}, client.WithWait(60*time.Second))
	if err == nil && !job.Final() {
		job, err = f.Wait(f.t.Context(), job.ID)
	}
	if err != nil {
		f.t.Fatalf("install %.200v: %v", packages, err)
	}
	return job
}

// startInstall starts an installation without waiting.
func (f *packageFarm) startInstall(box string, packages ...string) wire.Job {
	f.t.Helper()
	job, err := f.Install(f.t.Context(), box, wire.PackagesRequest{Packages: packages})
	if err != nil {
		f.t.Fatalf("install %v: %v", packages, err)
	}
	return job
}

// waitState waits for a job, which must end in the state.
func (f *packageFarm) waitState(job wire.Job, state string) wire.Job {
	f.t.Helper()
	done, err := f.Wait(f.t.Context(), job.ID)
	if err != nil || done.State != state {
		f.t.Fatalf("%s job: %v, state %s, want %s: %+v %+v", job.Kind, err, done.State, state, done.Error, done.Result)
	}
	return done
}

// wantOutcomes checks that an install job completed, with an outcome for each package: "" for installed, else part of its error.
func (f *packageFarm) wantOutcomes(job wire.Job, want ...string) {
	f.t.Helper()
	if job.State != "completed" || job.Result == nil || job.Result.Install == nil {
		f.t.Errorf("install: state %s, %+v", job.State, job.Error)
		return
	}
	f.wantOutcomesOf(job.Result.Install.Packages, want...)
}

func (f *packageFarm) wantOutcomesOf(got []wire.InstalledOne, want ...string) {
	f.t.Helper()
	if len(got) != len(want) {
		f.t.Errorf("%d packages are reported, want %d: %+v", len(got), len(want), got)
		return
	}
	for i, p := range got {
		ok := p.Status == "installed" && p.Version != ""
		if want[i] != "" {
			ok = p.Status == "failed" && strings.Contains(p.Message, want[i]) && p.Version == ""
			f.sentence(p.Message)
		}
		if !ok {
			f.t.Errorf("%s: %+v; want %q", p.Requested, p, want[i])
		}
		if os.Getenv("SHOW") != "" {
			f.t.Logf("%-30s %s %s %s", p.Requested, p.Status, p.Version, p.Message)
		}
	}
}

// sentence checks that a text is meant for people and shows no internals of the farm.
func (f *packageFarm) sentence(text string) {
	f.t.Helper()
	if len(text) < 20 || len(text) > 1200 || strings.Contains(text, "127.0.0.1") || strings.Contains(text, "localhost") || strings.Contains(text, "/.install-") {
		f.t.Errorf("this is not a sentence for a person: %q", text)
	}
}

// wantPackages checks that a sandbox works, has exactly these packages, and that installs left nothing behind.
func (f *packageFarm) wantPackages(box string, there ...string) {
	f.t.Helper()
	const look = `
import glob, os
home = os.path.expanduser('~')
left = glob.glob(home + '/.install-*') + glob.glob(home + '/.cache/uv') + glob.glob(home + '/.cache/pip') + glob.glob('/tmp/*uv*') + glob.glob('/tmp/pip*')
names = sorted(n for n in (os.listdir(home + '/.packages') if os.path.isdir(home + '/.packages') else []) if n not in ('bin', '__pycache__', 'sitecustomize.py') and not n.endswith('.dist-info'))
infos = sorted(n.split('-')[0] for n in (os.listdir(home + '/.packages') if os.path.isdir(home + '/.packages') else []) if n.endswith('.dist-info'))
busy = [c for c in (open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/cmdline')) if c.startswith(b'/sandfarm/uv')]
print(left, busy, names == infos, ' '.join(names))`
	modules := make([]string, 0, len(there))
	for _, name := range there {
		modules = append(modules, moduleOf(name))
	}
	want := "[] [] True " + strings.Join(modules, " ")
	testbed.Diff(f.t, "the sandbox afterwards", want, strings.TrimSuffix(f.run(box, look).Stdout, "\n"))
}

func (f *packageFarm) builds(t *testing.T) {
	box := f.sandbox(wire.CreateRequest{}).ID
	f.up.sdist("builds", "pass")
	f.up.sdist("build-fails", "print('compiling')\nraise SystemExit('error: the compiler cc7 is not here')")
	f.up.sdist("build-sleeps", "print('going to sleep', flush=True)\ntime.sleep(3600)")
	f.wantOutcomes(f.install(box, "build-fails", "builds"), "the compiler cc7 is not here", "")
	f.wantPackages(box, "builds")
	f.up.wheel("before-sleep", "1.0")
	began := time.Now()
	job, err := f.Install(t.Context(), box, wire.PackagesRequest{Packages: []string{"before-sleep", "build-sleeps"}, TimeoutSeconds: new(5)}, client.WithWait(60*time.Second))
	if err != nil || job.State != "timed_out" || job.Result == nil || job.Result.Install == nil || time.Since(began) > 2*time.Minute {
		t.Fatalf("the one that sleeps, after %v: %v %+v %+v", time.Since(began), err, job, job.Error)
	}
	f.wantOutcomesOf(job.Result.Install.Packages, "reached its timeout", "reached its timeout")
	f.wantPackages(box, "builds")
}
