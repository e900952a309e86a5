//go:build faults && rolling

package faulttest_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// A farm of the release before is updated process by process while it works, in two orders. In between both releases run side by side, and
// each takes over what the other's workers leave behind. SANDFARM_TEST_BEFORE is the program of the release before.
func TestRollingUpdate(t *testing.T) {
	t.Parallel()
	before := os.Getenv("SANDFARM_TEST_BEFORE")
	if before == "" {
		t.Fatal("SANDFARM_TEST_BEFORE is not set: run make test-rolling")
	}
	for name, order := range map[string][]string{
		"WorkersFirst": {"worker-1", "scheduler-1", "api", "scheduler-2", "worker-2"},
		"WorkersLast":  {"scheduler-1", "scheduler-2", "api", "worker-2", "worker-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var after string
			f := newFarm(t, faulttest.Config{Workers: 2, Schedulers: 2, Command: func(name string, argv []string) []string {
				if slices.Contains(order, name) {
					after, argv[0] = argv[0], before
				}
				return argv
			}})
			c := f.Case(t, "rolling update, "+name)
			boxes := c.Boxes(4)
			for i, part := range order {
				everyKind(t, f, boxes[i%len(boxes)])
				work(c, boxes)
				f.Term(part)
				f.Use(after, part)
				f.Back(part)
				work(c, boxes)
				holder := f.AwaitHolder(c.Insist(boxes[i%len(boxes)], faulttest.Run{Lines: 40, Files: 1}).ID)
				c.Fault(func() { f.Kill(holder) }, nil) // the other worker takes over
				f.Back(holder)
				c.Completed("after the update of " + part)
			}
			everyKind(t, f, boxes[0])
			c.End()
			f.End()
		})
	}
}

// everyKind runs a job of each kind in a sandbox, and in new ones.
func everyKind(t *testing.T, f *faulttest.Farm, box string) {
	t.Helper()
	ctx, done := context.WithTimeout(t.Context(), 2*time.Minute)
	defer done()
	command := "echo ran"
	files := f.Files(box)
	for what, call := range map[string]func() (wire.Job, error){
		"execute": func() (wire.Job, error) {
			return f.Execute(ctx, box, wire.ExecuteRequest{Code: "print(6 * 7)\nopen('made.txt', 'w').write('x')"}, client.WithWait(60*time.Second))
		},
		"command": func() (wire.Job, error) {
			return f.Command(ctx, box, wire.CommandRequest{Command: &command}, client.WithWait(60*time.Second))
		},
		"background": func() (wire.Job, error) {
			return f.Command(ctx, box, wire.CommandRequest{Command: &command, Background: true}, client.WithWait(60*time.Second))
		},
		"run": func() (wire.Job, error) {
			return f.Run(ctx, wire.RunRequest{Code: "print('alone')"}, client.WithWait(60*time.Second))
		},
		"create and close": func() (wire.Job, error) {
			made, err := f.CreateSandbox(ctx, wire.CreateRequest{}, client.WithWait(60*time.Second))
			if err != nil {
				return made.Job, err
			}
			return f.Close(ctx, made.Sandbox.ID, client.WithWait(60*time.Second))
		},
	} {
		job, err := call()
		if err == nil && !job.Final() {
			job, err = f.Wait(ctx, job.ID)
		}
		if err != nil || job.State != "completed" {
			t.Errorf("%s: %v %s %+v", what, err, job.State, job.Error)
		}
	}
	content := fmt.Appendf(nil, "written at %s", time.Now())
	if err := files.Write(ctx, "sent.txt", bytes.NewReader(content)); err != nil {
		t.Errorf("write a file: %v", err)
	}
	if body, err := files.Read(ctx, "sent.txt", 0); err != nil {
		t.Errorf("read a file: %v", err)
	} else if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the file has %q, %v; want %q", got, err, content)
	}
	// What is there since before the update is readable.
	for artifact, err := range f.Artifacts(ctx, client.ArtifactFilter{}) {
		if err != nil {
			t.Errorf("list artifacts: %v", err)
			break
		}
		if content, err := f.Download(ctx, artifact); err != nil {
			t.Errorf("download %s: %v", artifact.ID, err)
		} else {
			_ = content.Close()
		}
		break
	}
	var kinds []string
	for job, err := range f.Jobs(ctx, client.JobFilter{}) {
		if err != nil {
			t.Errorf("list jobs: %v", err)
			break
		}
		if !slices.Contains(kinds, job.Kind) {
			kinds = append(kinds, job.Kind)
		}
	}
	for _, kind := range []string{"create", "execute", "command", "run", "close"} {
		if !slices.Contains(kinds, kind) {
			t.Errorf("the list of jobs has only the kinds %v", kinds)
		}
	}
}
