//go:build abuse

package abusetest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const storedQuota = "max_stored_mb"

// shrinkTime bounds how long the farm takes to give back what jobs have left.
const shrinkTime = 2 * time.Minute

// Uploads of 20 MB wait behind a job that sleeps, until the quota of the abuser is used up. When the sandbox ends, they are gone.
func stagedUploads(f farm) {
	const uploads, size, allowed = 30, 20_000_000, 200
	used := f.stored()
	quota := int(used) + allowed
	f.change(wire.TenantChange{Set: wire.TenantRequest{MaxStoredMB: &quota}})
	defer f.change(wire.TenantChange{Default: []string{storedQuota}})
	boxes, closeAll := f.boxes(1)
	_, err := f.Execute(f.t.Context(), boxes[0], wire.ExecuteRequest{Code: "import time; time.sleep(300)"})
	testbed.Must(f.t, err)
	before, content := f.StoredBytes(), make([]byte, size)
	accepted := 0
	l := f.Measure(f.t, fmt.Sprintf("%d uploads of 20 MB behind a sleeping job", uploads), func() {
		var mu sync.Mutex
		var g errgroup.Group
		g.SetLimit(4)
		for range uploads {
			g.Go(func() error {
				text, status, err := f.send(http.MethodPut, "/v1/sandboxes/"+boxes[0]+"/files/a?wait=0", "application/octet-stream", bytes.NewReader(content))
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				var problem wire.Problem
				switch {
				case status == http.StatusAccepted:
					accepted++
				case status != http.StatusTooManyRequests || json.Unmarshal(text, &problem) != nil:
					return fmt.Errorf("status %d: %s", status, text)
				case problem.Quota == nil || problem.Quota.Name != storedQuota || *problem.Quota.Limit != float64(quota) || problem.Quota.Used > float64(quota):
					return fmt.Errorf("refused with %s", text)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			f.t.Error(err)
		}
	})
	f.within(l, uploads, allowed*mib+32*mib)
	if accepted == 0 || accepted*size > allowed*mib {
		f.t.Errorf("%d uploads of %d bytes were accepted within %d MiB", accepted, size, allowed)
	}
	closeAll()
	f.Until(shrinkTime, "the uploads are gone", func() bool { return f.StoredBytes() < before+mib && f.stored() < used+1 })
}

// stored is how many MiB of max_stored_mb the abuser uses.
func (f farm) stored() float64 {
	f.t.Helper()
	usage, err := f.Usage(f.t.Context(), 1)
	testbed.Must(f.t, err)
	for _, q := range usage.Quotas {
		if q.Name == storedQuota {
			return q.Used
		}
	}
	f.t.Fatalf("no max_stored_mb in %+v", usage)
	return 0
}

// change changes the abuser's quotas.
func (f farm) change(change wire.TenantChange) {
	f.t.Helper()
	_, err := f.Operator.ChangeTenant(context.WithoutCancel(f.t.Context()), "abuser", change)
	testbed.Must(f.t, err)
}

// Jobs with callbacks that nobody takes, queued in a sandbox that ends. What lists unfinished jobs and open sandboxes shrinks again.
func callbacks(f farm) {
	const jobs = 300
	indexes := func() (sizes [2]int64) {
		for i, name := range []string{"open", "openboxes"} {
			n, err := f.Redis().ZCard(f.t.Context(), "sf:{abuser}:"+name).Result()
			testbed.Must(f.t, err)
			sizes[i] = n
		}
		return sizes
	}
	var before [2]int64
	f.Until(shrinkTime, "the sandboxes of the last row are closed", func() bool { before = indexes(); return before[0] == 0 })
	boxes, closeAll := f.boxes(1)
	request := wire.ExecuteRequest{Code: "import time; time.sleep(300)", CallbackURL: "http://127.0.0.1:1/"}
	l := f.Measure(f.t, fmt.Sprintf("%d jobs with callbacks that nobody takes", jobs), func() {
		for range jobs {
			_, err := f.Execute(f.t.Context(), boxes[0], request)
			testbed.Must(f.t, err)
		}
		closeAll()
		f.Until(shrinkTime, "the indexes are as before", func() bool { return indexes() == before })
	})
	f.within(l, jobs, mib)
}

// receiver takes callbacks; a silent one accepts them and never answers.
type receiver struct {
	*httptest.Server
	got        chan struct{} // has a value for each callback
	now, limit atomic.Int64  // callbacks without an answer
}

func newReceiver(t *testing.T, silent bool) *receiver {
	r := &receiver{got: make(chan struct{}, 10_000)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		n := r.now.Add(1)
		defer r.now.Add(-1)
		for old := r.limit.Load(); n > old && !r.limit.CompareAndSwap(old, n); old = r.limit.Load() {
		}
		r.got <- struct{}{}
		if silent {
			<-q.Context().Done()
		}
	}))
	t.Cleanup(func() {
		r.CloseClientConnections()
		r.Close()
	})
	return r
}

// Jobs whose callbacks go to a receiver that never answers. They hold no slot of jobs, and the neighbour's callbacks arrive all the time.
func silentReceiver(f farm) {
	const jobs, share = 90, 16
	boxes, closeAll := f.boxes(1)
	defer closeAll()
	silent, other := newReceiver(f.t, true), newReceiver(f.t, false)
	l := f.Measure(f.t, fmt.Sprintf("%d callbacks to a silent receiver", jobs), func() {
		for range jobs {
			_, err := f.Execute(f.t.Context(), boxes[0], wire.ExecuteRequest{Code: "print(1)", CallbackURL: silent.URL})
			testbed.Must(f.t, err)
		}
		f.Until(shrinkTime, "the worker has looked at all callbacks", func() bool {
			pipe := f.Redis().Pipeline()
			open, pending := pipe.ZCard(f.t.Context(), "sf:{abuser}:open"), pipe.LLen(f.t.Context(), "asynq:{callbacks}:pending")
			_, err := pipe.Exec(f.t.Context())
			testbed.Must(f.t, err)
			return open.Val() == 0 && pending.Val() == 0 && silent.limit.Load() >= share
		})
		job, err := f.Neighbour.Execute(f.t.Context(), f.Neighbour.Box, wire.ExecuteRequest{Code: "print(1)", CallbackURL: other.URL}, client.WithWait(60*time.Second))
		if err != nil || job.State != "completed" {
			f.t.Fatalf("%v %+v", err, job)
		}
		select {
		case <-other.got:
		case <-time.After(shrinkTime):
			f.t.Error("the neighbour's callback does not arrive")
		}
	})
	if limit := silent.limit.Load(); limit > 2*share { // the receiver may see the end of a delivery after the beginning of the next
		f.t.Errorf("%d callbacks of the abuser were delivered at once; it may have %d", limit, share)
	}
	f.within(l, jobs, mib)
}

// Small jobs whose results are just short enough for Redis, until it has no room for all: those of the abuser go, and the neighbour's calls
// are accepted all the time.
func fullRedis(f farm) {
	boxes, closeAll := f.boxes(2)
	defer closeAll()
	used := f.RedisBytes()
	limit := max(2*used, 64*mib) // from half of it on, finished jobs go
	f.limitRedis(limit)
	defer f.limitRedis(0)
	first, err := f.Execute(f.t.Context(), boxes[0], wire.ExecuteRequest{Code: "print('x' * 31_000)"}, client.WithWait(60*time.Second))
	testbed.Must(f.t, err)
	jobs := int(limit / 2 / 31_000) // twice what is left between a half and the 70 % at which nothing is accepted, even if the rest is empty
	l := f.Measure(f.t, fmt.Sprintf("%d jobs of 31 kB, Redis of %d MiB", jobs, limit/mib), func() {
		f.each(boxes, func(ctx context.Context, box string) error {
			for range jobs / len(boxes) {
				job, err := f.Execute(ctx, box, wire.ExecuteRequest{Code: "print('x' * 31_000)"}, client.WithWait(60*time.Second))
				if err != nil || job.State != "completed" {
					return fmt.Errorf("%w: %+v", err, job)
				}
			}
			return nil
		})
	})
	if used+l.Redis > limit*7/10 {
		f.t.Errorf("Redis used up to %d MiB of %d", (used+l.Redis)/mib, limit/mib)
	}
	_, err = f.Job(f.t.Context(), first.ID)
	if gone, ok := errors.AsType[*client.Error](err); !ok || gone.Status != http.StatusNotFound {
		f.t.Errorf("the abuser's first job is still there: the row does not fill Redis: %v", err)
	}
}

// limitRedis sets how much memory Redis may use; 0: all.
func (f farm) limitRedis(bytes int64) {
	f.t.Helper()
	testbed.Must(f.t, f.Redis().ConfigSet(context.WithoutCancel(f.t.Context()), "maxmemory", strconv.FormatInt(bytes, 10)).Err())
}
