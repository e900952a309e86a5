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

// awaits waits for a signal.
func awaits(t *testing.T, reached <-chan struct{}) {
	t.Helper()
	select {
	case <-reached:
	case <-time.After(time.Minute):
		t.Fatal("the file was not requested")
	}
}

// A package that does not fit fails alone. The others are installed and, with 128 MiB or more, the kernel survives.
func (f *packageFarm) fullInstalls(t *testing.T) {
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
			testbed.Diff(t, fmt.Sprintf("%s: the kernel's variable afterwards", name), "7\n", f.run(box, "print(kept)").Stdout)
		}
		f.wantPackages(box, c.there...)
	}
}

func (f *packageFarm) noNetwork(t *testing.T) {
	const sentence = `This sandbox has network "none"`
	f.up.wheel("no-way", "1.0")
	box := f.sandbox(wire.CreateRequest{Network: new("none")}).ID
	f.wantOutcomes(f.install(box, "no-way", "ipykernel"), sentence, "")
	f.wantPackages(box)
	job, err := f.Execute(t.Context(), box, wire.ExecuteRequest{Code: "print(1)\nimport no_way", AutoInstall: true}, client.WithWait(60*time.Second))
	if err != nil || job.State != "completed" || job.Result.Execute.Error == nil || job.Result.Execute.Error.Name != "ModuleNotFoundError" || job.Result.Execute.Stdout != "1\n" {
		t.Fatalf("auto_install: %v %+v", err, job)
	}
	f.wantOutcomesOf(job.Result.Execute.Installed, sentence)
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{Network: new("none"), Packages: []string{"no-way"}}, client.WithWait(60*time.Second))
	testbed.Must(t, err)
	f.wantOutcomes(made.Job, sentence)
	f.wantPackages(made.Sandbox.ID)
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

	install := f.startInstall(box, "asked")
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
	done := f.waitState(job, "completed")
	testbed.Diff(f.t, fmt.Sprintf("%s job: attempt", job.Kind), 2, done.Attempt)
	return done
}
