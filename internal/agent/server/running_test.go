package server_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// What a process started belongs to it, and is listed with what it costs.
func TestRunningProcesses(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	p := startProcess(t, l, spec("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo busy; sleep 1000.25 "+strings.Repeat("0 ", 200)+"& wait"))
	follow(t, l, p.ID, "r", 0, contains("busy"))
	var own, child farm.RunningProcess
	testbed.Until(t, "both processes are listed", func() bool {
		list, err := l.Running(t.Context())
		agenttest.Must(t, err)
		for i, one := range list {
			if i > 0 && one.PID <= list[i-1].PID {
				t.Errorf("%d follows %d", one.PID, list[i-1].PID)
			}
			if one.PID == p.PID {
				own = one
			}
			if one.Parent == p.PID && strings.HasPrefix(one.Command, "sleep 1000.25 0 0") {
				child = one
			}
		}
		return child.PID != 0
	})
	if own.Owner != p.ID || own.CPUSeconds <= 0 || own.MemoryBytes < 100<<10 || time.Since(own.StartedAt).Abs() > time.Minute || !strings.Contains(own.Command, "while") {
		t.Errorf("%+v", own)
	}
	if child.Owner != p.ID || len(child.Command) != farm.MaxRunningCommand {
		t.Errorf("%+v", child)
	}
}

// A program in the middle of an exec shows neither arguments nor environment: it is listed with both all the same.
func TestProgramThatExecsIsListed(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	const again = `exec sh -c "$0" "$0"`
	p := startProcess(t, l, spec("exec sh -c '"+again+"' '"+again+"'"))
	for range 40 {
		list, err := l.Running(t.Context())
		agenttest.Must(t, err)
		i := slices.IndexFunc(list, func(r farm.RunningProcess) bool { return r.PID == p.PID })
		if i < 0 {
			t.Fatalf("process %d is not listed: %+v", p.PID, list)
		}
		if list[i].Owner != p.ID || strings.HasPrefix(list[i].Command, "[") {
			t.Fatalf("%+v", list[i])
		}
	}
}
