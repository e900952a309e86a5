package execution

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// A copy of a file for a caller is charged before it is written: there is none that the tenant may not store, and none that counts for nobody.
func TestCopiesOfFilesAreCharged(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	b := setup(t)
	b.cfg.Limits.MaxArtifactBytes, b.cfg.Limits.MaxFileBytes = 3*mb, 4*mb
	box := b.Ready()
	b.Fake.Put(box.ID, true)
	agent := workertest.Hostile(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, sent := 0, 0
		switch r.URL.Query().Get("path") {
		case "small":
			size, sent = 100, 100
		case "2mb":
			size, sent = 2*mb, 2*mb
		case "shrinks":
			size, sent = 2*mb, mb
		case "huge": // as a sparse file is
			size = 5 * mb
		}
		w.Header().Set("X-Entry", `{"path":"a","size":`+strconv.Itoa(size)+`,"mode":"0644","type":"file"}`)
		_, _ = w.Write(make([]byte, sent))
	}))
	x, n := b.runner()
	workertest.Must(t, n.UseConnection(t.Context(), box.ID, func() *client.Client { return agent }))
	worker := farm.NewID("wrk_")
	b.Register(worker)
	quota := 1.0
	workertest.Must(t, b.Store.ChangeTenant(t.Context(), workertest.Tenant, store.TenantChange{Quotas: map[farm.QuotaName]*float64{farm.QuotaStoredMB: &quota}}))
	var kept int64
	for _, c := range []struct {
		path string
		link bool
		code farm.Code
		kept int64 // bytes of the copy
	}{
		{"small", false, "", 0}, // it is in the answer
		{"small", true, "", 100},
		{"empty", true, "", 1},
		{"2mb", true, farm.CodeExhausted, 0},
		{"2mb", false, "", 2 * mb}, // reads have some room beyond the quota
		{"shrinks", false, farm.CodeConflict, 0},
		{"huge", true, farm.CodeTooLarge, 0},
		{"huge", false, farm.CodeTooLarge, 0},
	} {
		request := &farm.FileRequest{Op: farm.FileRead, Path: c.path, Link: c.link}
		job := b.Accept(farm.KindFile, box.ID, &farm.Request{File: request}, func(a *store.Accept) {
			a.Job.Inline, a.Job.Hidden = true, true
			request.Staged = farm.StagingOf(a.Job.Ref()) + "read"
		})
		claim, err := b.Store.Claim(t.Context(), job, worker)
		workertest.Must(t, err)
		got, err := x.File(t.Context(), Task{Claim: claim})
		if farm.CodeOf(err) != c.code {
			t.Errorf("%s, link %v: %+v, %v; want %q", c.path, c.link, got, err, c.code)
		}
		var copied int64
		workertest.Must(t, b.Blobs.List(t.Context(), farm.StagingOf(job), func(o blob.Info) error {
			copied += max(o.Size, 1)
			return nil
		}))
		kept += c.kept
		if stored, err := b.Store.Stored(t.Context(), workertest.Tenant); err != nil || stored.Kept != kept || copied != c.kept {
			t.Errorf("%s, link %v: a copy of %d bytes, and %+v is stored (%v); want %d of %d", c.path, c.link, copied, stored, err, c.kept, kept)
		}
	}
}
