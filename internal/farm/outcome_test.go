package farm_test

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

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
