package execution

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

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
	if err := <-done; !errors.Is(err, store.ErrFenced) {
		t.Errorf("the late worker ended with %v, want ErrFenced", err)
	}
	artifacts := k.Job(job).Result.Artifacts
	if len(artifacts) != 1 {
		t.Fatalf("artifacts %+v", artifacts)
	}
	a := artifacts[0]
	content := k.content(a.Key)
	if sum := sha256.Sum256(content); a.Size != size || len(content) != size || a.SHA256 != hex.EncodeToString(sum[:]) || bytes.ContainsRune(content, 'b') {
		t.Errorf("the artifact has %d bytes, its record says %d; or another job's bytes: %q…", len(content), a.Size, content[:4])
	}
}
