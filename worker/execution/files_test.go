package execution

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
		claim := b.Claim(job, worker)
		got, err := x.File(t.Context(), Task{Claim: claim})
		testbed.Check(t, farm.CodeOf(err) == c.code, "%s, link %v: %+v, %v; want %q", c.path, c.link, got, err, c.code)
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

// The files of an upload that are stored in its request travel together; an agent that is older than that is asked for each.
func TestSmallFilesTravelTogether(t *testing.T) {
	t.Parallel()
	for _, older := range []bool{false, true} {
		b := setup(t)
		box := b.Ready()
		b.Fake.Put(box.ID, true)
		var mu sync.Mutex
		calls, sizes := map[string]int{}, map[string]int64{}
		describe := func(path string) farm.FileEntry {
			return farm.FileEntry{Path: path, Size: sizes[path], Mode: "0644", Type: "file"}
		}
		agent := workertest.Hostile(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			path := r.URL.Query().Get("path")
			calls[r.Method+" "+r.URL.Path]++
			switch r.URL.Path {
			case "/v1/files/tar":
				var placed []farm.FileEntry
				for members := tar.NewReader(r.Body); ; {
					h, err := members.Next()
					if err != nil {
						break
					}
					sizes[h.Name] = h.Size
					placed = append(placed, describe(h.Name))
				}
				if older {
					placed = nil
				}
				_ = json.NewEncoder(w).Encode(map[string]any{"entries": placed})
			case "/v1/files/content":
				sizes[path], _ = io.Copy(io.Discard, r.Body)
				_ = json.NewEncoder(w).Encode(describe(path))
			case "/v1/files/stat":
				_ = json.NewEncoder(w).Encode(describe(path))
			}
		}))
		x, n := b.runner()
		workertest.Must(t, n.UseConnection(t.Context(), box.ID, func() *client.Client { return agent }))
		worker := farm.NewID("wrk_")
		b.Register(worker)
		request := &farm.FileRequest{Op: farm.FileMany, Path: ".", Parts: []farm.InputFile{{Path: "large"}, {Path: "a", Content: []byte("1"), Size: 1}, {Path: "d/b"}}}
		job := b.Accept(farm.KindFile, box.ID, &farm.Request{File: request}, func(a *store.Accept) {
			request.Parts[0].Staged = farm.StagingOf(a.Job.Ref()) + "large"
			_, err := b.Blobs.Put(t.Context(), request.Parts[0].Staged, strings.NewReader("12345"), 5, blob.PutOptions{})
			workertest.Must(t, err)
		})
		claim := b.Claim(job, worker)
		got, err := x.File(t.Context(), Task{Claim: claim})
		workertest.Must(t, err)
		if diff := cmp.Diff([]farm.FileEntry{
			{Path: "large", Size: 5, Mode: "0644", Type: "file"}, {Path: "a", Size: 1, Mode: "0644", Type: "file"}, {Path: "d/b", Mode: "0644", Type: "file"},
		}, got.Result.File.Entries); diff != "" {
			t.Errorf("older agent %v: (-want +got):\n%s", older, diff)
		}
		want := map[string]int{"POST /v1/files/tar": 1, "PUT /v1/files/content": 1}
		if older {
			want["GET /v1/files/stat"] = 2
		}
		testbed.Diff(t, fmt.Sprintf("older agent %v: calls", older), want, calls)
	}
}
