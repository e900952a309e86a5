package worker

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// A row that cannot be decoded must not make the worker look dead.
func TestHeartbeatDoesNotNeedTheStatusOfTheNode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=2")
	broken := b.member(w)
	key := ""
	for _, k := range b.Redis.Keys() {
		if strings.HasSuffix(k, "m:"+broken.ID) {
			key = k
		}
	}
	b.Redis.HSet(key, "doc", "{")
	workertest.Must(t, b.Store.RemoveWorker(t.Context(), w.id))
	if err := w.beat(t.Context()); err == nil || !strings.Contains(err.Error(), broken.ID) {
		t.Errorf("beat = %v, want the error of the member", err)
	}
	workers, err := b.Store.Workers(t.Context())
	workertest.Must(t, err)
	if !slices.ContainsFunc(workers, func(found farm.Worker) bool { return found.ID == w.id }) {
		t.Error("the worker is not registered")
	}
}
