package execution

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// While the object store is away, a full log holds the code back; when it is back, the code goes on and no output is missing.
func TestCodeGoesOnWhenTheObjectStoreIsBack(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 1_600_000, 90_000) // 11.7 MB: twice what the agent's log takes
	k.cfg.UploadRetry = 1
	var away atomic.Bool
	var refused atomic.Int64
	blobs := k.BlobsBehind(func(s3 http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if away.Load() {
				refused.Add(1)
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			s3.ServeHTTP(w, r)
		})
	})
	k.Register("wrk_a")
	n := k.NewNode()
	workertest.Must(t, n.UseConnection(t.Context(), k.box.ID, func() *client.Client { return agenttest.Connect(t, k.a.Server) }))
	job := k.accept()
	claim := k.Claim(job, "wrk_a")
	x := k.runnerOn(n, k.Store, blobs)
	away.Store(true)
	type ended struct {
		got Outcome
		err error
	}
	done := make(chan ended, 1)
	go func() {
		got, err := x.Run(t.Context(), Task{Claim: claim}, claim.Sandbox, nil)
		done <- ended{got, err}
	}()
	testbed.Until(t, "the worker has tried several times", func() bool { return refused.Load() >= 10 })
	testbed.Require(t, len(done) == 0, "the job ended without its output")
	away.Store(false)
	end := <-done
	workertest.Must(t, end.err)
	testbed.Require(t, end.got.State == farm.JobCompleted && end.got.Err == nil, "outcome %+v, error %+v", end.got, end.got.Err)
	k.check("the object store is back", job, end.got)
}

// A worker that was held up in the middle of an upload goes on when its job has ended, and a later job has changed the file. The artifact
// stays what the job made.
func TestLateUploadReplacesNoArtifact(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 2, 2)
	const size = 12 << 20
	job := k.Accept(farm.KindCommand, k.box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{fmt.Sprintf("yes a | head -c %d >big", size)}}}, nil)
	reached, hold, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		// Held when it begins the upload: it has read little of the file.
		_, err := k.work(job, &fault{at: -1, on: "POST /farm/artifacts/", hold: hold, end: func() { close(reached) }})
		done <- err
	}()
	<-reached
	got, err := k.work(job, &fault{at: -1})
	workertest.Must(t, err)
	_, err = k.Store.Finish(t.Context(), finishOf(k.Job(job), got))
	workertest.Must(t, err)
	got.Cleanup(t.Context())

	later := k.Accept(farm.KindCommand, k.box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{fmt.Sprintf("yes b | head -c %d | dd of=big conv=notrunc status=none", size)}}}, nil)
	_, err = k.work(later, &fault{at: -1})
	workertest.Must(t, err)
	close(hold)
	err = <-done
	testbed.Check(t, errors.Is(err, store.ErrFenced), "the late worker ended with %v, want ErrFenced", err)
	artifacts := k.Job(job).Result.Artifacts
	testbed.Require(t, len(artifacts) == 1, "artifacts %+v", artifacts)
	a := artifacts[0]
	content := k.content(a.Key)
	if sum := sha256.Sum256(content); a.Size != size || len(content) != size || a.SHA256 != hex.EncodeToString(sum[:]) || bytes.ContainsRune(content, 'b') {
		t.Errorf("the artifact has %d bytes, its record says %d; or another job's bytes: %q…", len(content), a.Size, content[:4])
	}
}

// A container does not run, and its engine, which stops, does not answer the question why: it is asked again, so that the job is lost with the
// sandbox and does not fail with the engine's words.
func TestReattachToWhatDoesNotRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.Ready()
	b.Fake.Put(box.ID, false)
	x, _ := b.runner()
	asked := 0
	err := x.reattach(t.Context(), b.Sandbox(box), "job_x", func() (bool, error) {
		b.Fake.Drop("containers/test-"+box.ID+"/json", []int{1000, 0}[asked])
		asked++
		return false, farm.Conflictf("the container is not running")
	})
	testbed.Check(t, errors.Is(err, node.ErrGone) && asked == 2, "%v after %d looks", err, asked)
}
