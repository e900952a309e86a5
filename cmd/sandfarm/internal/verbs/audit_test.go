package verbs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Each read looks back in time, and none of what it finds there is printed twice, or printed although the first line was to be a later one.
func TestAuditFollowsWithNewEntriesOnly(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	start := time.Now().Add(-30 * time.Second)
	entry := func(n int) wire.AuditEntry {
		return wire.AuditEntry{ID: fmt.Sprintf("e%02d", n), At: start.Add(time.Duration(n) * time.Second), Route: fmt.Sprintf("r%02d", n)}
	}
	const old, polls = 30, 3
	var reads atomic.Int64
	f.Routes["GET /v1/audit"] = func(w http.ResponseWriter, r *http.Request) {
		read := int(reads.Add(1)) - 1
		after, _ := time.Parse(time.RFC3339Nano, r.URL.Query().Get("created_after"))
		page := wire.List[wire.AuditEntry]{Items: []wire.AuditEntry{}}
		for n := old + read - 1; n >= 0; n-- { // a new one for each read after the first
			if e := entry(n); e.At.After(after) {
				page.Items = append(page.Items, e)
			}
		}
		if read == polls+1 {
			cancel()
		}
		_ = json.NewEncoder(w).Encode(page)
	}
	r := f.sandfarm(ctx, "", "audit", "--follow", "--limit", "1")
	var got []string
	for line := range strings.Lines(r.out) {
		got = append(got, line[strings.LastIndex(line, " r")+1:len(line)-1])
	}
	if want := "r29 r30 r31 r32"; !strings.HasPrefix(strings.Join(got, " "), want) || len(got) > 5 {
		t.Errorf("%s, want %s", got, want)
	}
}
