package execution

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
	claim, err := k.Store.Claim(t.Context(), job, "wrk_a")
	workertest.Must(t, err)
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
	if len(done) > 0 {
		t.Fatal("the job ended without its output")
	}
	away.Store(false)
	end := <-done
	workertest.Must(t, end.err)
	if end.got.State != farm.JobCompleted || end.got.Err != nil {
		t.Fatalf("outcome %+v, error %+v", end.got, end.got.Err)
	}
	k.check("the object store is back", job, end.got)
}
