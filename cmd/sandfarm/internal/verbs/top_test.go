package verbs_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
)

func TestTopWithoutATerminalPrintsOnePage(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/queues"] = f.gives(http.StatusOK, wire.Items[wire.Queue]{Items: []wire.Queue{{Name: "cpu", Depth: 2, OldestSeconds: 90}}})
	f.Routes["GET /v1/workers"] = f.gives(http.StatusOK, wire.Items[wire.Worker]{Items: []wire.Worker{{ID: "wrk_1", Host: "h", Queues: []string{"cpu"}, Slots: 4}}})
	for _, args := range [][]string{{"top"}, {"top", "--once"}} {
		got := f.sandfarm(t.Context(), "", args...)
		if got.code != 0 || strings.Contains(got.out, "\x1b") || !strings.Contains(got.out, "cpu    2        0        1m      -           h\n") {
			t.Errorf("%v: %d\n%s%s", args, got.code, got.out, got.stderr)
		}
	}
	f.Routes["GET /v1/activity"] = f.gives(http.StatusOK, wire.Items[wire.Minute]{Items: []wire.Minute{{Ended: 4}}})
	if got := f.sandfarm(t.Context(), "", "top", "--once"); !strings.Contains(got.out, "last hour: 4 jobs ended, 0 failed, longest wait 0.0s\n") {
		t.Errorf("the last hour is missing:\n%s%s", got.out, got.stderr)
	}
	var both struct {
		Workers []wire.Worker
		Queues  []wire.Queue
	}
	got := f.sandfarm(t.Context(), "", "top", "--json")
	decode(t, got.out, &both)
	if len(both.Workers) != 1 || len(both.Queues) != 1 || both.Queues[0].OldestSeconds != 90 {
		t.Errorf("JSON: %+v", both)
	}
	if got := f.sandfarm(t.Context(), "", "top", "--every", "1ms"); got.code != 2 || !strings.Contains(got.stderr, "at least 100ms") {
		t.Errorf("--every 1ms: %d %s", got.code, got.stderr)
	}
}
