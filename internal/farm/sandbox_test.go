package farm_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestCannotHibernateNamesTheSetting(t *testing.T) {
	t.Parallel()
	if got := farm.CannotHibernate(&farm.Sandbox{ID: "sbx_x", Runtime: "runc"}).Error(); !strings.Contains(got, `engine.runtime = "runsc" (docs/operations.md)`) {
		t.Error(got)
	}
}

func TestDrainProgress(t *testing.T) {
	t.Parallel()
	late := time.Unix(2000, 0)
	ready := &farm.Sandbox{State: farm.SandboxReady, ExpiresAt: late}
	asleep := &farm.Sandbox{State: farm.SandboxHibernated, ExpiresAt: time.Unix(1000, 0)}
	knows, busy, unaware := farm.Worker{Draining: true}, farm.Worker{Draining: true, Running: 2}, farm.Worker{}
	for name, c := range map[string]struct {
		workers []farm.Worker
		open    []*farm.Sandbox
		want    farm.DrainProgress
	}{
		"nothing is left":               {[]farm.Worker{knows, knows}, nil, farm.DrainProgress{State: farm.DrainDone}},
		"no worker is left":             {nil, nil, farm.DrainProgress{State: farm.DrainDone}},
		"a worker does not know yet":    {[]farm.Worker{knows, unaware}, nil, farm.DrainProgress{State: farm.DrainRuns}},
		"a job runs":                    {[]farm.Worker{knows, busy}, nil, farm.DrainProgress{Jobs: 2, State: farm.DrainRuns}},
		"a sandbox is open":             {[]farm.Worker{knows}, []*farm.Sandbox{asleep, ready}, farm.DrainProgress{Sandboxes: 2, Hibernated: 1, Ends: late, State: farm.DrainRuns}},
		"only hibernated ones are left": {[]farm.Worker{knows}, []*farm.Sandbox{asleep}, farm.DrainProgress{Sandboxes: 1, Hibernated: 1, Ends: time.Unix(1000, 0), State: farm.DrainHibernated}},
	} {
		if got := farm.ProgressOfDrain(c.workers, c.open); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestOwnKernel(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"": false, "runc": false, "crun": false, "nvidia": false, "runsc": true, "runsc-kvm": true, "gvisor": true, "kata": true, "io.containerd.kata.v2": true} {
		if got := farm.OwnKernel(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
		if got := farm.GVisor(name); got != (want && !strings.Contains(name, "kata")) {
			t.Errorf("%q is gVisor: %v", name, got)
		}
	}
}

func TestOutcomeOf(t *testing.T) {
	t.Parallel()
	code := func(exit int, name string) *farm.Result {
		e := &farm.ExecuteResult{ExitCode: exit}
		if name != "" {
			e.Error = &farm.CodeError{Name: name}
		}
		return &farm.Result{Execute: e}
	}
	commands := func(exits ...int) *farm.Result {
		c := &farm.CommandResult{}
		for _, exit := range exits {
			c.Commands = append(c.Commands, farm.CommandOutcome{ExitCode: exit})
		}
		return &farm.Result{Command: c}
	}
	packages := func(states ...farm.PackageStatus) *farm.Result {
		i := &farm.InstallResult{}
		for _, state := range states {
			i.Packages = append(i.Packages, farm.PackageOutcome{Status: state})
		}
		return &farm.Result{Install: i}
	}
	for name, test := range map[string]struct {
		state  farm.JobState
		result *farm.Result
		want   farm.JobOutcome
	}{
		"NoResult":      {farm.JobCompleted, nil, farm.OutcomeOK},
		"Code":          {farm.JobCompleted, code(0, ""), farm.OutcomeOK},
		"Raised":        {farm.JobCompleted, code(1, "ValueError"), farm.OutcomeFailed},
		"RaisedWith0":   {farm.JobCompleted, code(0, "OutputLimitExceeded"), farm.OutcomeFailed},
		"Exit0":         {farm.JobCompleted, code(0, "SystemExit"), farm.OutcomeOK},
		"Exit3":         {farm.JobCompleted, code(3, "SystemExit"), farm.OutcomeFailed},
		"Commands":      {farm.JobCompleted, commands(0, 0), farm.OutcomeOK},
		"FirstCommand":  {farm.JobCompleted, commands(2, 0), farm.OutcomeFailed},
		"Packages":      {farm.JobCompleted, packages(farm.PackageInstalled), farm.OutcomeOK},
		"FailedPackage": {farm.JobCompleted, packages(farm.PackageInstalled, farm.PackageFailed), farm.OutcomeFailed},
		"Failed":        {farm.JobFailed, nil, farm.OutcomeFailed},
		"TimedOut":      {farm.JobTimedOut, code(0, ""), farm.OutcomeFailed},
		"Lost":          {farm.JobLost, nil, farm.OutcomeFailed},
		"Canceled":      {farm.JobCanceled, code(1, "KeyboardInterrupt"), ""},
		"Running":       {farm.JobRunning, nil, ""},
		"Queued":        {farm.JobQueued, nil, ""},
	} {
		if got := farm.OutcomeOf(test.state, test.result); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestIDsAsUUIDs(t *testing.T) {
	t.Parallel()
	id := farm.NewID(farm.SandboxPrefix)
	uuid := farm.UUIDOf(farm.SandboxPrefix, id)
	if len(uuid) != 36 || farm.FromUUID(farm.SandboxPrefix, uuid) != id || farm.FromUUID(farm.SandboxPrefix, strings.ToUpper(uuid)) != id {
		t.Errorf("%s became %s, and that %s", id, uuid, farm.FromUUID(farm.SandboxPrefix, uuid))
	}
	for _, wrong := range []string{"", "x", uuid[1:], uuid + "0", strings.ReplaceAll(uuid, "-", ""), strings.Replace(uuid, "-", "", 1) + "-"} {
		if got := farm.FromUUID(farm.SandboxPrefix, wrong); got != "" {
			t.Errorf("%q is taken for %s", wrong, got)
		}
	}
	if got := farm.UUIDOf(farm.JobPrefix, id); got != "" {
		t.Errorf("the id of a sandbox became that of a job: %s", got)
	}
}
