//go:build integration

package main_test

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
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
			"BadNames": (*packageFarm).badPackageNames, "Unobtainable": (*packageFarm).unobtainable, "Builds": (*packageFarm).builds,
			"FaultsOfTheIndex": (*packageFarm).indexFaults, "Canceled": (*packageFarm).canceledInstalls, "Full": (*packageFarm).fullInstalls,
			"Closed": (*packageFarm).closedInstall, "Coalesced": (*packageFarm).coalesced, "NoNetwork": (*packageFarm).noNetwork,
			"Versions": (*packageFarm).versions, "Requirements": (*packageFarm).requirements, "Imports": (*packageFarm).imports,
			"Pip": (*packageFarm).plainPip, "Status": (*packageFarm).status,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(f.in(t), t)
			})
		}
	})
	t.Run("IndexDown", f.in(t).indexDown)
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

// version is the version that a new process imports; "" if the import fails.
func (f *packageFarm) version(box, name string) string {
	f.t.Helper()
	job, err := f.Command(f.t.Context(), box, wire.CommandRequest{
		Command: new("python -c 'import " + moduleOf(name) + " as m; print(m.__version__)' 2>/dev/null"),
	}, client.WithWait(60*time.Second))
	if err != nil || job.State != "completed" {
		f.t.Fatalf("command: %v %+v", err, job)
	}
	return strings.TrimSpace(job.Result.Command.Results[0].Stdout)
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
	if got := strings.TrimSuffix(f.run(box, look).Stdout, "\n"); got != want {
		f.t.Errorf("the sandbox afterwards: %q, want %q", got, want)
	}
}

func (f *packageFarm) badPackageNames(t *testing.T) {
	box := f.sandbox(wire.CreateRequest{}).ID
	many := strings.TrimSuffix(strings.Repeat(`"six",`, 10_000), ",")
	for _, list := range []string{
		`"--index-url=x"`, `"-r /etc/passwd"`, `"git+https://example.org/x"`, `"../x"`, `"/etc"`, `"six; rm -rf /"`, `"six @ https://example.org/six.whl"`,
		`"six --pre"`, `"six\n--pre"`, `"$(id)"`, `""`, `"x y"`, many, `"` + strings.Repeat("x", 1<<20) + `"`, `"sıx"`, `"six\u0000"`, `"six ; python_version>'3'"`,
		`"https://example.org/six.whl"`, `"."`, `"-e ."`, `"six[a"`, `"six=="`,
	} {
		for path, body := range map[string]string{"/v1/sandboxes/" + box + "/packages": `{"packages":[%s]}`, "/v1/sandboxes": `{"packages":[%s]}`, "/v1/run": `{"code":"1","packages":[%s]}`} {
			detail := f.refused(t, http.StatusUnprocessableEntity, farm.CodeInvalid, "POST", path, fmt.Sprintf(body, list))
			if len(detail) > 600 {
				t.Errorf("%.40s: the answer has %d bytes", list, len(detail))
			}
		}
	}
	for _, body := range []string{`{}`, `{"packages":[]}`, `{"packages":["six"],"manager":"apt"}`, `{"packages":["six"],"timeout_seconds":0}`} {
		if r := f.ask("POST", "/v1/sandboxes/"+box+"/packages", body); r.code != farm.CodeInvalid || r.status/100 != 4 {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}
	f.refused(t, http.StatusNotFound, farm.CodeNotFound, "POST", "/v1/sandboxes/sbx_00000000000000000000000000/packages", `{"packages":["six"]}`)
	for _, name := range []string{"..%2Fx", "six%3B%20ls", "six%3E%3D2", "-r", "%00"} {
		if r := f.ask("GET", "/v1/sandboxes/"+box+"/packages/"+name, nil); r.status != http.StatusUnprocessableEntity && r.status != http.StatusBadRequest && r.status != http.StatusNotFound {
			t.Errorf("GET of %s: %d %s", name, r.status, r.body)
		}
	}
	f.up.wheel("one-name", "1.0")
	f.wantOutcomes(f.install(box, "one-name", "One.Name", "ONE__name==1.0", "one_name"), "", "", "", "")
	f.wantPackages(box, "one-name")
	for _, name := range []string{"one-name", "One_Name", "ONE.NAME"} {
		if p, err := f.Package(t.Context(), box, name); err != nil || p.Status != "installed" || p.Name != "one-name" || p.Version != "1.0" {
			t.Errorf("%s: %v %+v", name, err, p)
		}
	}
	job, err := f.Install(t.Context(), box, wire.PackagesRequest{Packages: []string{"left-pad"}, Manager: new("npm")}, client.WithWait(30*time.Second))
	testbed.Must(t, err)
	f.wantOutcomes(job, "no npm")
}

func (f *packageFarm) unobtainable(t *testing.T) {
	box := f.sandbox(wire.CreateRequest{}).ID
	f.up.wheelFor("only-old", "cp27-cp27mu-manylinux1_x86_64")
	f.up.wheelFor("only-elsewhere", "cp313-cp313-win_amd64")
	f.up.wheel("needs-absent", "1.0", "absent-dependency>=2")
	f.up.wheel("pair-left", "1.0", "pair-base<2")
	f.up.wheel("pair-right", "1.0", "pair-base>=2")
	f.up.wheel("pair-base", "1.0")
	f.up.wheel("pair-base", "2.0")
	f.up.wheel("fine", "1.0")
	f.up.add("no-files", "x", nil)
	f.up.mu.Lock()
	f.up.pages["no-files"] = []upstreamFile{}
	f.up.mu.Unlock()
	f.wantOutcomes(f.install(box, "fine", "no-such-thing", "only-old", "only-elsewhere", "needs-absent", "pair-left", "pair-right", "fine==7", "no-files", "fine[extra]"),
		"", "no-such-thing was not found in the package index", "only-old has no wheel for", "only-elsewhere has no wheel for",
		"needs-absent needs absent-dependency, which was not found in the package index", "", "pair-right conflicts with other required packages", "fine", "no-files", "")
	f.wantPackages(box, "fine", "pair-base", "pair-left")
	if p, err := f.Package(t.Context(), box, "needs_absent"); err != nil || p.Status != "failed" || p.Message == "" {
		t.Errorf("needs-absent: %v %+v", err, p)
	}
	f.up.wheel("absent-dependency2", "2.0")
	f.up.wheel("needs-absent", "1.1", "absent-dependency2>=2")
	f.wantOutcomes(f.install(box, "needs-absent"), "") // the fault has ended
	f.wantPackages(box, "absent-dependency2", "fine", "needs-absent", "pair-base", "pair-left")
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{Packages: []string{"fine", "no-such-thing"}}, client.WithWait(60*time.Second))
	testbed.Must(t, err)
	f.wantOutcomes(made.Job, "", "no-such-thing was not found in the package index")
	f.wantPackages(made.Sandbox.ID, "fine")
	run, err := f.Run(t.Context(), wire.RunRequest{Code: "import fine; print(fine.__version__)", Packages: []string{"fine", "no-such-thing"}}, client.WithWait(60*time.Second))
	if err != nil || run.State != "completed" || run.Result.Execute.Stdout != "1.0\n" {
		t.Fatalf("run: %v %+v", err, run)
	}
	f.wantOutcomesOf(run.Result.Execute.Installed, "", "no-such-thing was not found in the package index")
}

func (f *packageFarm) builds(t *testing.T) {
	box := f.sandbox(wire.CreateRequest{}).ID
	f.up.sdist("builds", "pass")
	f.up.sdist("build-fails", "print('compiling')\nraise SystemExit('error: the compiler cc7 is not here')")
	f.up.sdist("build-is-loud", "for _ in range(20): os.write(1, b'noise ' * 174763)")
	f.up.sdist("build-is-loud-and-fails", "for _ in range(100): os.write(2, b'noise noise noise\\n' * 58254)\nsys.exit('the end of the noise')")
	f.up.sdist("build-sleeps", "print('going to sleep', flush=True)\ntime.sleep(3600)")
	f.wantOutcomes(f.install(box, "build-fails", "builds"), "the compiler cc7 is not here", "")
	f.wantPackages(box, "builds")
	began := time.Now()
	f.wantOutcomes(f.install(box, "build-is-loud"), "")
	loud := f.install(box, "build-is-loud-and-fails")
	f.wantOutcomes(loud, "the end of the noise")
	if r := loud.Result.Install; r != nil && len(r.Stdout)+len(r.Stderr) > 3<<20 {
		t.Errorf("the result has %d bytes of output", len(r.Stdout)+len(r.Stderr))
	}
	t.Logf("the loud ones took %v", time.Since(began))
	f.wantPackages(box, "build-is-loud", "builds")
	f.up.wheel("before-sleep", "1.0")
	began = time.Now()
	job, err := f.Install(t.Context(), box, wire.PackagesRequest{Packages: []string{"before-sleep", "build-sleeps"}, TimeoutSeconds: new(5)}, client.WithWait(60*time.Second))
	if err != nil || job.State != "timed_out" || job.Result == nil || job.Result.Install == nil || time.Since(began) > 2*time.Minute {
		t.Fatalf("the one that sleeps, after %v: %v %+v %+v", time.Since(began), err, job, job.Error)
	}
	f.wantOutcomesOf(job.Result.Install.Packages, "reached its timeout", "reached its timeout")
	f.wantPackages(box, "build-is-loud", "builds")
	f.wantOutcomes(f.install(box, "before-sleep"), "")
	f.wantPackages(box, "before-sleep", "build-is-loud", "builds")
}
