//go:build integration

package main_test

import (
	"fmt"
	"strings"
	"syscall"
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

// TestPackages installs in sandboxes of a real farm: what does not fit, and what code imports. The farm's goroutines and memory stay bounded.
func TestPackages(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	// With a memory limit, Go returns free memory to the system at once. The budget is that of a process without one.
	f := &packageFarm{up: up, farmProcess: newFarm(t, append(up.env(), "SANDFARM_WORKER_AUTO_INSTALL_DENY=denied,De_Nied.two", "GOMEMLIMIT=150MiB", "SANDFARM_MEMORY_BUDGET_MB=1024")...)}
	f.run(f.sandbox(wire.CreateRequest{}).ID, "print(1)") // warm up
	goroutines := f.metric("go_goroutines")
	t.Run("All", func(t *testing.T) {
		for name, test := range map[string]func(*packageFarm){"Full": (*packageFarm).fullInstalls, "AutoInstall": (*packageFarm).autoInstalls} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				process := *f.farmProcess
				process.t = t
				test(&packageFarm{farmProcess: &process, up: up})
			})
		}
	})
	for sandbox, err := range f.Sandboxes(t.Context(), client.SandboxFilter{Open: true}) {
		testbed.Must(t, err)
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

// install installs packages and returns the finished job.
func (f *packageFarm) install(box string, packages ...string) wire.Job {
	f.t.Helper()
	return f.ended(f.Install(f.t.Context(), box, wire.PackagesRequest{Packages: packages}, client.WithWait(60*time.Second)))
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
			ok = p.Status == "failed" && strings.Contains(p.Message, want[i]) && p.Version == "" && isSentence(p.Message)
		}
		if !ok {
			f.t.Errorf("%s: %+v; want %q", p.Requested, p, want[i])
		}
	}
}

// isSentence reports whether a text is meant for people and shows no internals of the farm.
func isSentence(text string) bool {
	return len(text) >= 20 && len(text) <= 1200 && !strings.Contains(text, "127.0.0.1") && !strings.Contains(text, "localhost") && !strings.Contains(text, "/.install-")
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

// A package that does not fit fails alone. The others are installed and, with 128 MiB or more, the kernel survives.
func (f *packageFarm) fullInstalls() {
	f.up.wheel("small", "1.0")
	f.up.largeWheel("large", 48<<20)
	f.up.largeWheel("larger", 192<<20)
	for name, c := range map[string]struct {
		disk, memory int
		asked, want  []string
		there        []string
	}{
		"disk":          {32, 2048, []string{"small", "larger"}, []string{"", "disk_mb"}, []string{"small"}},
		"four times":    {16, 2048, []string{"small", "large"}, []string{"", ""}, []string{"large", "small"}},
		"memory":        {512, 128, []string{"larger", "small"}, []string{"memory", ""}, []string{"small"}},
		"little memory": {512, 64, []string{"small"}, []string{""}, []string{"small"}},
		"least memory":  {512, 64, []string{"large", "small"}, []string{"memory", ""}, []string{"small"}},
	} {
		box := f.sandbox(wire.CreateRequest{Resources: &wire.ResourcesRequest{DiskMB: new(c.disk), MemoryMB: new(c.memory)}}).ID
		f.run(box, "kept = 7")
		f.wantOutcomes(f.install(box, c.asked...), c.want...)
		if c.memory >= 128 { // with less, kernel and installer hardly fit
			testbed.Diff(f.t, fmt.Sprintf("%s: the kernel's variable afterwards", name), "7\n", f.run(box, "print(kept)").Stdout)
		}
		f.wantPackages(box, c.there...)
	}
}

// auto executes code with auto_install and returns what was installed, as "name why".
func (f *packageFarm) auto(box, code string) (*wire.ExecuteResult, string) {
	f.t.Helper()
	job, err := f.Execute(f.t.Context(), box, wire.ExecuteRequest{Code: code, AutoInstall: true}, client.WithWait(60*time.Second))
	if err != nil || job.State != "completed" || job.Result == nil || job.Result.Execute == nil {
		f.t.Fatalf("execute: %v %+v", err, job)
	}
	var list []string
	for _, p := range job.Result.Execute.Installed {
		list = append(list, fmt.Sprintf("%s %s (%s)", p.Name, p.Status, p.Why))
	}
	return job.Result.Execute, strings.Join(list, ", ")
}

// autoInstalls runs code that imports packages, which the operator may not allow, beside a requirements.txt that is anything.
func (f *packageFarm) autoInstalls() {
	for _, name := range []string{"imported", "imported-perhaps", "denied", "de-nied-two", "listed"} {
		f.up.wheel(name, "1.0")
	}
	box := f.sandbox(wire.CreateRequest{}).ID
	for _, c := range []struct{ code, stdout, installed, fails string }{ // "*": whatever is installed
		{"import imported, os.path, json\nprint(imported.__version__)", "1.0\n", "imported installed (imported as imported)", ""},
		{"import imported\nprint('again')", "again\n", "", ""},
		{"import denied", "", "denied failed (imported as denied)", "ModuleNotFoundError"},
		{"import de_nied_two", "", "de-nied-two failed (imported as de_nied_two)", "ModuleNotFoundError"},
		{"try:\n    import imported_perhaps\nexcept ImportError:\n    print('without')", "without\n", "", ""}, // the code works without it
		{"import imported\ntext = '" + strings.Repeat("x", 5<<20) + "'\nprint('long')", "long\n", "", ""},
		{"open('requirements.txt', 'w').write('listed==1.0\\n-r /etc/passwd\\n') and None", "", "", ""},
		{"import listed\nprint('ran')", "ran\n", "listed installed (in requirements.txt)", ""},
		{"open('requirements.txt', 'w').write('\\0\\1\\2') and None", "", "", ""},
		{"open('requirements.txt', 'w').write('x' * (1 << 20)) and None", "", "*", ""},
		{"open('requirements.txt', 'w').write('a==1\\\\\\n' * 10_000) and None", "", "*", ""},
		{"import os; os.remove('requirements.txt'); os.mkdir('requirements.txt')", "", "*", ""},
		{"os.rmdir('requirements.txt'); os.mkfifo('requirements.txt')", "", "", ""},
		{"print('after a pipe')", "after a pipe\n", "", ""},
	} {
		result, got := f.auto(box, c.code)
		failed := ""
		if result.Error != nil {
			failed = result.Error.Name
		}
		if got != c.installed && c.installed != "*" || result.Stdout != c.stdout || failed != c.fails {
			f.t.Errorf("%.80q: installed %q, printed %q, failed %q: %+v", c.code, got, result.Stdout, failed, result.Installed)
		}
		for _, p := range result.Installed {
			if p.Name == "denied" && !strings.Contains(p.Message, "The operator does not allow denied") {
				f.t.Errorf("denied: %q", p.Message)
			}
		}
	}
	f.wantOutcomes(f.install(box, "denied"), "") // the deny list is for automatic installs only
	f.wantPackages(box, "denied", "imported", "listed")
	var code strings.Builder
	code.WriteString("n = -1\n")
	for n := range 1000 {
		fmt.Fprintf(&code, "if n > %d:\n    import many_imports_%d\n", n, n)
	}
	if result, _ := f.auto(f.sandbox(wire.CreateRequest{}).ID, code.String()+"print('many')"); result.Stdout != "many\n" {
		f.t.Errorf("1000 imports: %q %+v", result.Stdout, result.Error)
	}
}

// TestPackagesSurviveAKill kills the farm during installs of every kind.
func TestPackagesSurviveAKill(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	f := &packageFarm{up: up, farmProcess: newFarm(t, append(up.env(), "SANDFARM_WORKER_AUTO_INSTALL_ALLOW=asked-by-code,asked.by_run")...)}
	names := []string{"asked", "asked-by-code", "asked-by-run", "asked-by-create"}
	reached, release := make(chan struct{}, 100), make(chan struct{})
	var heal []func()
	for _, name := range names {
		up.largeWheel(name, 2<<20)
		heal = append(heal, up.fail("/files/"+name+"/", up.half(holds(reached, release))))
	}
	up.wheel("not-allowed", "1.0")
	box, other := f.sandbox(wire.CreateRequest{}).ID, f.sandbox(wire.CreateRequest{}).ID
	f.run(box, "kept = 7")
	auto, err := f.Execute(t.Context(), other, wire.ExecuteRequest{Code: "import not_allowed", AutoInstall: true}, client.WithWait(60*time.Second))
	if err != nil || auto.State != "completed" {
		t.Fatalf("auto_install: %v %+v", err, auto)
	}
	f.wantOutcomesOf(auto.Result.Execute.Installed, "The operator does not allow not-allowed")

	install, err := f.Install(t.Context(), box, wire.PackagesRequest{Packages: []string{"asked"}})
	testbed.Must(t, err)
	code, err := f.Execute(t.Context(), other, wire.ExecuteRequest{Code: "import asked_by_code; print(asked_by_code.__version__)", AutoInstall: true})
	testbed.Must(t, err)
	run, err := f.Run(t.Context(), wire.RunRequest{Code: "import asked_by_run; print(asked_by_run.__version__)", AutoInstall: true})
	testbed.Must(t, err)
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{Packages: []string{"asked-by-create"}})
	testbed.Must(t, err)
	until(t.Context(), t, "all four installs are running", time.Minute, func() bool {
		for _, name := range names {
			if up.count("/files/"+name+"/"+wheelName(name, "1.0", "py3-none-any")) == 0 {
				return false
			}
		}
		return true
	})
	f.stop(syscall.SIGKILL)
	for _, end := range heal {
		end()
	}
	close(release)
	time.Sleep(time.Second) // the installers notice that the worker is gone
	f.start()
	f.wantOutcomes(f.second(install), "")
	f.wantOutcomes(f.second(made.Job), "")
	for job, want := range map[string]wire.Job{"execute": code, "run": run} {
		done := f.second(want)
		if got := done.Result.Execute; got == nil || got.Stdout != "1.0\n" || got.Error != nil {
			t.Errorf("%s: %+v", job, got)
		} else {
			f.wantOutcomesOf(got.Installed, "")
		}
	}
	f.wantPackages(box, "asked")
	f.wantPackages(other, "asked-by-code")
	f.wantPackages(made.Sandbox.ID, "asked-by-create")
	if got := f.run(box, "import asked; print(kept, asked.__version__)").Stdout; !strings.HasPrefix(got, "7 1.0") {
		t.Errorf("the kernel afterwards: %q", got)
	}
}

// second expects a job that the second worker has completed.
func (f *packageFarm) second(job wire.Job) wire.Job {
	f.t.Helper()
	done, err := f.Wait(f.t.Context(), job.ID)
	if err != nil || done.State != "completed" || done.Attempt != 2 {
		f.t.Fatalf("%s job: %v, state %s, attempt %d: %+v %+v", job.Kind, err, done.State, done.Attempt, done.Error, done.Result)
	}
	return done
}
