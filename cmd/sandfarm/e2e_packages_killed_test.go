//go:build integration

package main_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

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
	if err != nil {
		t.Fatal(err)
	}
	run, err := f.Run(t.Context(), wire.RunRequest{Code: "import asked_by_run; print(asked_by_run.__version__)", AutoInstall: true})
	if err != nil {
		t.Fatal(err)
	}
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{Packages: []string{"asked-by-create"}})
	if err != nil {
		t.Fatal(err)
	}
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
	if done.Attempt != 2 {
		f.t.Errorf("%s job: attempt %d", job.Kind, done.Attempt)
	}
	return done
}
