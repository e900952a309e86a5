package execution

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// printingNpm starts an agent for a sandbox whose npm prints so many bytes on standard output and on standard error.
func printingNpm(t *testing.T, n *node.Node, sandbox farm.Ref, stdout, stderr int, printed ...string) *agenttest.Agent {
	t.Helper()
	bin := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nhead -c %d /dev/zero | tr '\\0' o\nhead -c %d /dev/zero | tr '\\0' e >&2\n", stdout, stderr)
	for _, line := range printed {
		script += "echo '" + line + "' >&2\n"
	}
	testbed.Must(t, os.WriteFile(filepath.Join(bin, "npm"), []byte(script), 0o700)) //nolint:gosec // a program
	a := agenttest.StartIndexed(t, bin+":/usr/bin:/bin", http.NotFoundHandler(), nil)
	testbed.Must(t, n.UseConnection(t.Context(), sandbox.ID, func() *client.Client {
		return agenttest.ConnectIndexed(t, a.Server, http.NotFoundHandler())
	}))
	return a
}

func (b *bundle) content(key string) []byte {
	b.T.Helper()
	body, _, err := b.Blobs.Get(b.T.Context(), key, 0, 0)
	testbed.Must(b.T, err)
	data, err := io.ReadAll(body)
	testbed.Must(b.T, err)
	testbed.Must(b.T, body.Close())
	return data
}

// checkOutput checks one stream of a result: whole up to the limit, and beyond it named and stored whole as an artifact.
func (b *bundle) checkOutput(size, limit int, letter, text, path string, artifacts []farm.Artifact) {
	b.T.Helper()
	whole := strings.Repeat(letter, size)
	if size <= limit {
		if text != whole || len(artifacts) != 0 {
			b.T.Errorf("%d bytes of a limit of %d: %d are in the result, artifacts %+v", size, limit, len(text), artifacts)
		}
		return
	}
	if !strings.Contains(text, "the whole output is the artifact "+path+"]") {
		b.T.Errorf("the result does not name the artifact %s: %q", path, text[:min(len(text), 200)])
	}
	if len(artifacts) != 1 || artifacts[0].Path != path || artifacts[0].Size != int64(size) {
		b.T.Fatalf("artifacts %+v, want %s of %d bytes", artifacts, path, size)
	}
	got := b.content(artifacts[0].Key)
	testbed.Check(b.T, bytes.Equal(got, []byte(whole)), "the artifact holds %d bytes that are not the output of %d bytes", len(got), size)
	recorded, _, err := b.Store.Artifacts(b.T.Context(), workertest.Tenant, store.ArtifactFilter{JobID: artifacts[0].JobID}, store.Page{})
	testbed.Must(b.T, err)
	testbed.Check(b.T, len(recorded) == 1 && recorded[0].ID == artifacts[0].ID, "records of artifacts %+v", recorded)
}

var leftPad = &farm.InstallRequest{Manager: farm.ManagerNpm, Packages: []string{"left-pad"}}

func TestWholeOutputOfAnInstallJobIsAnArtifact(t *testing.T) {
	t.Parallel()
	const limit = 1000
	for _, size := range []int{limit - 1, limit, limit + 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.cfg.Limits.MaxStreamInline = limit
			x, n := b.runner()
			box := b.Ready()
			printingNpm(t, n, box, 0, size)
			job := b.Accept(farm.KindInstall, box.ID, &farm.Request{Install: leftPad}, nil)
			claim := b.Claim(job, "w1")
			got, err := x.Run(t.Context(), Task{Claim: claim}, claim.Sandbox, nil)
			testbed.Must(t, err)
			b.checkOutput(size, limit, "e", got.Result.Install.Stderr, ".output/stderr.txt", got.Result.Artifacts)
		})
	}
}

func TestWholeOutputOfPackagesOfACreateIsAnArtifact(t *testing.T) {
	t.Parallel()
	for _, size := range []int{installInline - 1, installInline, installInline + 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			x, n := b.runner()
			job, box := b.Creation(farm.KindCreate)
			printingNpm(t, n, box, size, 0)
			claim := b.Claim(job, "w1")
			claim.Request.Install = leftPad
			installed, err := x.InstallRequested(t.Context(), Task{Claim: claim}, claim.Sandbox)
			testbed.Must(t, err)
			got := installed.Result()
			b.checkOutput(size, installInline, "o", got.Install.Stdout, ".output/packages-stdout.txt", got.Artifacts)
			events := b.artifactEvents(job)
			testbed.Check(t, len(events) == len(got.Artifacts), "events of artifacts: %v", events)
		})
	}
}

func (b *bundle) artifactEvents(job farm.Ref) []string {
	b.T.Helper()
	var ids []string
	for _, e := range b.Events(job) {
		if e.Name == farm.EventArtifact {
			ids = append(ids, e.Artifact.ID)
		}
	}
	return ids
}

// The result of code has no output of installers: a note names the artifact.
func TestWholeOutputOfPackagesOfARunIsAnArtifact(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, n := b.runner()
	job, box := b.Creation(farm.KindRun)
	printingNpm(t, n, box, 0, installInline+1)
	claim := b.Claim(job, "w1")
	claim.Request.Install = leftPad
	task := Task{Claim: claim}
	installed, err := x.InstallRequested(t.Context(), task, claim.Sandbox)
	testbed.Must(t, err)
	got, err := x.Run(t.Context(), task, claim.Sandbox, installed)
	testbed.Must(t, err)
	const path = ".output/packages-stderr.txt"
	b.checkOutput(installInline+1, installInline, "e", installed.Result().Install.Stderr, path, got.Result.Artifacts)
	if notes := strings.Join(got.Result.Notes, "\n"); !strings.Contains(notes, path) || len(got.Result.Command.Installed) != 1 {
		t.Errorf("notes %q, installed %+v", notes, got.Result.Command.Installed)
	}
	events := b.artifactEvents(job)
	testbed.Check(t, len(events) == 1, "events of artifacts: %v", events)
}

// The progress of an install names what is installed, and has no errors of the installer: the outcome explains them.
func TestProgressOfAnInstall(t *testing.T) {
	t.Parallel()
	for printed, want := range map[string][]string{"error: no solution": {"installing left-pad"}, "installing left-pad 1.0": {"installing left-pad", "installing left-pad 1.0"}} {
		b := setup(t)
		x, n := b.runner()
		job, box := b.Creation(farm.KindRun)
		printingNpm(t, n, box, 0, 0, printed)
		claim := b.Claim(job, "w1")
		claim.Request.Install = leftPad
		_, err := x.InstallRequested(t.Context(), Task{Claim: claim}, claim.Sandbox)
		testbed.Must(t, err)
		var got []string
		for _, e := range b.Events(job) {
			if e.Name == farm.EventProgress {
				got = append(got, e.Progress.Message)
			}
		}
		testbed.Check(t, slices.Equal(got, want), "%q: progress %q, want %q", printed, got, want)
	}
}

// The part of a long log that the agent has forgotten is staged, so that a worker that takes over still has the whole log.
func TestTakeoverHasTheWholeOutputOfAnInstall(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Register("w1")
	first, n := b.runner()
	job, box := b.Creation(farm.KindRun)
	const size = 2*ackBytes + 1
	a := printingNpm(t, n, box, size, 0)
	claim := b.Claim(job, "w1")
	claim.Request.Install = leftPad
	installed, err := first.InstallRequested(t.Context(), Task{Claim: claim}, claim.Sandbox)
	testbed.Must(t, err)
	testbed.Require(t, installed.from.e.staged.acked != 0, "nothing of the log is staged")
	testbed.Must(t, b.Store.RemoveWorker(t.Context(), "w1"))
	b.Register("w2")
	second, n := b.runner()
	testbed.Must(t, n.UseConnection(t.Context(), box.ID, func() *client.Client { return agenttest.Connect(t, a.Server) }))
	claim = b.Claim(job, "w2")
	claim.Request.Install = leftPad
	task := Task{Claim: claim}
	again, err := second.InstallRequested(t.Context(), task, claim.Sandbox)
	testbed.Must(t, err)
	if again.from.e.staged.acked < installed.from.e.staged.acked {
		t.Errorf("the second worker began before frame %d", installed.from.e.staged.acked)
	}
	b.checkOutput(size, installInline, "o", again.Result().Install.Stdout, ".output/packages-stdout.txt", again.artifacts)
	if again.artifacts[0].ID != installed.artifacts[0].ID || again.artifacts[0].SHA256 != installed.artifacts[0].SHA256 {
		t.Errorf("the artifact is another: %+v, before %+v", again.artifacts[0], installed.artifacts[0])
	}
	got, err := second.Run(t.Context(), task, claim.Sandbox, again)
	testbed.Must(t, err)
	cleanUp(context.WithoutCancel(t.Context()), got)
	b.nothingStaged(job)
}

// If the object store is down, the output of an install is lost, but the install succeeds.
func TestInstallWithoutItsOutput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.UploadRetry = 1 // one try
	x, n := b.runner()
	x.blobs = b.BrokenBlobs()
	job, box := b.Creation(farm.KindCreate)
	printingNpm(t, n, box, installInline+1, 0)
	claim := b.Claim(job, "w1")
	claim.Request.Install = leftPad
	installed, err := x.InstallRequested(t.Context(), Task{Claim: claim}, claim.Sandbox)
	testbed.Must(t, err)
	got := installed.Result()
	if len(got.Artifacts) != 0 || !strings.Contains(got.Install.Stdout, "could not be stored") || len(got.Install.Packages) != 1 {
		t.Errorf("result %+v", got)
	}
}
