//go:build integration

package kernel_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestInterruptReachesOnlyRunningExecutions(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	id, next := agenttest.NewID(), agenttest.NewID()
	testbed.Must(t, a.Start(t.Context(), id, agenttest.Code("print('begun')\nimport time; time.sleep(999)")))
	frames, err := a.Frames(t.Context(), id, 1)
	testbed.Must(t, err)
	_, err = frames.Next()
	testbed.Must(t, err)
	testbed.Must(t, frames.Close())
	testbed.Must(t, a.Start(t.Context(), next, agenttest.Code("print('next')")))
	testbed.Must(t, a.Interrupt(t.Context(), "another"))
	testbed.Must(t, a.Interrupt(t.Context(), ""))
	if ran := agenttest.Read(t, a.Client, id); ran.Outcome.Error == nil || ran.Outcome.Error.Name != "KeyboardInterrupt" || ran.Outcome.Restarted {
		t.Errorf("interrupted = %+v", ran.Outcome)
	}
	ran := agenttest.Read(t, a.Client, next)
	testbed.Check(t, ran.Stdout == "next\n", "next = %+v", ran)
}

func TestContextsHaveDirectories(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	live := a.Live()
	where := func(name, language string) string {
		t.Helper()
		code := map[string]string{"python": "import os; print(os.getcwd())", "bash": "pwd"}[language]
		spec := agenttest.Code(code)
		spec.Context, spec.Language = name, language
		return agenttest.Run(t, a.Client, spec).Stdout
	}
	home := strings.TrimSpace(where("first", "python"))
	agenttest.Run(t, a.Client, agenttest.Code("import os; os.makedirs('sub/deep', exist_ok=True); open('file', 'w')"))
	for _, c := range []struct{ name, language, cwd, want string }{
		{"whole", "python", home + "/sub", home + "/sub"},
		{"relative", "python", "sub/deep", home + "/sub/deep"},
		{"none", "python", "", home},
		{"shell", "bash", "sub", home + "/sub"},
	} {
		made, err := live.CreateContext(t.Context(), farm.CodeContext{Name: c.name, Language: c.language, Cwd: c.cwd})
		want := (farm.CodeContext{Name: c.name, Language: c.language, Cwd: c.want})
		testbed.Check(t, err == nil && made == want, "CreateContext = %+v, %v; want %+v", made, err, want)
		got := where(c.name, c.language)
		testbed.Check(t, got == c.want+"\n", "%s: code runs in %q, want %s", c.name, got, c.want)
	}
	testbed.Must(t, a.RestartKernel(t.Context(), "whole"))
	testbed.Diff(t, "after a restart code runs in", home+"/sub\n", where("whole", "python"))
	_, err := live.CreateContext(t.Context(), farm.CodeContext{Name: "whole", Cwd: "sub"})
	testbed.Check(t, err == nil, "the same again: %v", err)
	for name, c := range map[string]struct {
		context farm.CodeContext
		code    farm.Code
	}{
		"OtherDirectory": {farm.CodeContext{Name: "whole"}, farm.CodeConflict},
		"Missing":        {farm.CodeContext{Name: "x", Cwd: "nowhere"}, farm.CodeInvalid},
		"File":           {farm.CodeContext{Name: "x", Cwd: "file"}, farm.CodeInvalid},
		"Language":       {farm.CodeContext{Name: "x", Language: "cobol"}, farm.CodeInvalid},
		"Name":           {farm.CodeContext{Name: "*"}, farm.CodeInvalid},
	} {
		_, err := live.CreateContext(t.Context(), c.context)
		testbed.Check(t, farm.CodeOf(err) == c.code, "%s: %v, want code %s", name, err, c.code)
	}
	var names []string
	list, err := live.Contexts(t.Context())
	testbed.Must(t, err)
	for _, c := range list {
		names = append(names, c.Name)
	}
	testbed.Diff(t, "contexts by age", []string{"first", "default", "whole", "relative", "none", "shell"}, names)
}

// One context less than there may be, as many, and one more, made by code and by a call. One more takes the place of the one that was idle for
// longest, whose next code is told that its variables are lost; the default context and those in which code runs stay.
func TestLimitOfContexts(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	testbed.Diff(t, "GET /v1/limits: the agent has", agent.MaxContexts, farm.DefaultLimits().MaxContexts)
	live := a.Live()
	start := func(context, language string, code map[string]string) (string, error) {
		spec, id := agenttest.Code(code[language]), agenttest.NewID()
		spec.Context, spec.Language = context, language
		return id, a.Start(t.Context(), id, spec)
	}
	short := map[string]string{"python": "x = 1", "bash": "true"}
	long := map[string]string{"python": "print('begun'); import time; time.sleep(999)", "bash": "echo begun; sleep 999"}
	run := func(context, language string) agenttest.Ran {
		id, err := start(context, language, short)
		testbed.Must(t, err)
		return agenttest.Read(t, a.Client, id)
	}
	name := func(n int) string { return fmt.Sprintf("c%d", n) }
	has := func(when string, limit int, want ...string) {
		t.Helper()
		list, err := live.Contexts(t.Context())
		testbed.Must(t, err)
		var names []string
		for _, c := range list {
			names = append(names, c.Name)
		}
		if len(list) != limit || !slices.Equal(names[:len(want)], want) {
			t.Errorf("%s: contexts %v, want %d beginning with %v", when, names, limit, want)
		}
	}
	run("default", "python")
	run("first", "python")
	for n := 2; n < agent.MaxContexts-1; n++ {
		run(name(n), "bash")
	}
	has("one less", agent.MaxContexts-1, "default", "first", "c2")
	_, err := live.CreateContext(t.Context(), farm.CodeContext{Name: "full", Language: "bash"})
	testbed.Must(t, err)
	has("as many", agent.MaxContexts, "default", "first", "c2")
	run("c2", "bash")
	run("by-code", "bash")
	has("one more by code", agent.MaxContexts, "default", "c2", "c3")
	_, err = live.CreateContext(t.Context(), farm.CodeContext{Name: "by-call", Language: "bash"})
	testbed.Must(t, err)
	has("one more by a call", agent.MaxContexts, "default", "c2", "c4")
	got := run("first", "python")
	testbed.Check(t, got.Outcome.Restarted, "the evicted context: %+v, want the word that its variables are lost", got.Outcome)
	got = run("first", "python")
	testbed.Check(t, !got.Outcome.Restarted, "the evicted context was told twice")

	list, err := live.Contexts(t.Context())
	testbed.Must(t, err)
	for _, c := range list[1:] { // all but the default context
		id, err := start(c.Name, c.Language, long)
		testbed.Must(t, err)
		frames, err := a.Frames(t.Context(), id, 1)
		testbed.Must(t, err)
		_, err = frames.Next()
		testbed.Must(t, err)
		testbed.Must(t, frames.Close())
	}
	_, byCode := start("more", "bash", short)
	_, byCall := live.CreateContext(t.Context(), farm.CodeContext{Name: "more", Language: "bash"})
	for by, err := range map[string]error{"a call": byCall, "code": byCode} {
		if farm.CodeOf(err) != farm.CodeExhausted || !strings.Contains(farm.MessageOf(err), fmt.Sprint(agent.MaxContexts)) {
			t.Errorf("one more by %s while code runs in all: %v", by, err)
		}
	}
	testbed.Must(t, live.RemoveContext(t.Context(), "c5", "bash"))
	run("more", "bash")
	err = a.RestartKernel(t.Context(), "none")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "restart of an unknown context: %v", err)
}

// What runs in a context that is removed ends, what waits for it does not run, and neither leaves a kernel behind.
func TestContextIsRemoved(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	live := a.Live()
	running, waiting := agenttest.NewID(), agenttest.NewID()
	in := func(code string) agent.Spec {
		spec := agenttest.Code(code)
		spec.Context = "gone"
		return spec
	}
	testbed.Must(t, a.Start(t.Context(), running, in("x = 1; print('begun')\nimport time; time.sleep(999)")))
	frames, err := a.Frames(t.Context(), running, 1)
	testbed.Must(t, err)
	_, err = frames.Next()
	testbed.Must(t, err)
	testbed.Must(t, frames.Close())
	testbed.Must(t, a.Start(t.Context(), waiting, in("print('ran')")))
	testbed.Must(t, live.RemoveContext(t.Context(), "gone", "python"))
	ran := agenttest.Read(t, a.Client, running)
	testbed.Check(t, ran.Outcome.Error != nil && ran.Outcome.Error.Name == farm.ErrorKernelDied, "the code that ran: %+v", ran.Outcome)
	if ran := agenttest.Read(t, a.Client, waiting); ran.Stdout != "" || ran.Outcome.Error == nil || ran.Outcome.Error.Name != "NotAvailable" {
		t.Errorf("the code that waited: %q, %+v", ran.Stdout, ran.Outcome)
	}
	for range 2 {
		err := live.RemoveContext(t.Context(), "gone", "python")
		testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "removed again: %v", err)
	}
	list, err := live.Contexts(t.Context())
	info, infoErr := a.Info(t.Context())
	if err != nil || infoErr != nil || len(list) != 0 || len(info.Kernels) != 0 {
		t.Errorf("contexts %v, kernels %v, %v, %v", list, info.Kernels, err, infoErr)
	}
	ran = agenttest.Run(t, a.Client, in("x"))
	testbed.Check(t, ran.Outcome.Error != nil && ran.Outcome.Error.Name == "NameError", "the same name again: %+v", ran.Outcome)
}
