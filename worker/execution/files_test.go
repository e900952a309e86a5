package execution

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
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
	testbed.Must(t, n.UseConnection(t.Context(), box.ID, func() *client.Client { return agent }))
	worker := farm.NewID("wrk_")
	b.Register(worker)
	quota := 1.0
	testbed.Must(t, b.Store.ChangeTenant(t.Context(), workertest.Tenant, store.TenantChange{Quotas: map[farm.QuotaName]*float64{farm.QuotaStoredMB: &quota}}))
	var kept int64
	for _, c := range []struct {
		path string
		link bool
		code farm.Code
		kept int64 // what the copy counts
	}{
		{"small", false, "", 0}, // it is in the answer
		{"small", true, "", farm.StoredBytes(100)},
		{"empty", true, "", farm.StoredBytes(0)},
		{"2mb", true, farm.CodeExhausted, 0},
		{"2mb", false, "", farm.StoredBytes(2 * mb)}, // reads have some room beyond the quota
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
		testbed.Must(t, b.Blobs.List(t.Context(), farm.StagingOf(job), func(o blob.Info) error {
			copied += farm.StoredBytes(o.Size)
			return nil
		}))
		kept += c.kept
		if stored, err := b.Store.Stored(t.Context(), workertest.Tenant); err != nil || stored.Kept != kept || copied != c.kept {
			t.Errorf("%s, link %v: a copy of %d bytes, and %+v is stored (%v); want %d of %d", c.path, c.link, copied, stored, err, c.kept, kept)
		}
	}
}

// A list stays charged until the memory of its job is released, when it is stored: eight of 60 MiB waited for the object store, and nobody was charged.
// What its text takes beyond the agent's answer is charged, too; here the answers are terse.
func TestListsAreChargedUntilTheyAreStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, n := b.runner()
	box := b.Ready()
	b.Fake.Put(box.ID, true)
	answer := ""
	agent := workertest.Hostile(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
	testbed.Must(t, n.UseConnection(t.Context(), box.ID, func() *client.Client { return agent }))
	const entry, pack = 1024, 256 // bytes of text of each
	for text, least := range map[int]int64{
		budget.SmallBytes - 1: 0, budget.SmallBytes: 0, budget.SmallBytes + 1: (budget.SmallBytes + 1) * resultWeight, 1 << 20: 1 << 20 * resultWeight,
	} {
		files, packages := make([]string, (text+1)/entry), make([]string, (text+1)/pack)
		for i := range files {
			files[i] = `{"path":"` + pathOf(entry-client.EntryBytes+rest(i, text, entry)) + `","size":0,"mode":"0644","type":"file"}`
		}
		for i := range packages {
			packages[i] = `{"name":"` + strings.Repeat("a", pack-packageBytes-1+rest(i, text, pack)) + `","version":"1","manager":"pip"}`
		}
		for kind, list := range map[farm.JobKind]string{farm.KindFile: `{"entries":[` + strings.Join(files, ",") + `]}`, farm.KindPackages: `[` + strings.Join(packages, ",") + `]`} {
			answer = list
			want := least
			if len(list) > budget.SmallBytes { // it was charged as it came
				want = max(want, int64(len(list))*budget.BodyWeight)
			}
			memory := budget.New(64 << 20)
			ctx, hold := memory.With(t.Context(), workertest.Tenant, 0)
			do := x.Packages
			if kind == farm.KindFile {
				do = x.File
			}
			_, err := do(ctx, Task{Claim: &store.Claim{Job: &farm.Job{Tenant: workertest.Tenant}, Sandbox: b.Sandbox(box), Request: &farm.Request{File: &farm.FileRequest{Op: farm.FileList}}}})
			testbed.Must(t, err)
			held := hold.Bytes()
			testbed.Check(t, held == want, "%s: a list of %d bytes of text is charged with %d, want %d", kind, text, held, want)
			hold.Release()
		}
	}
}

// pathOf is a path of n bytes.
func pathOf(n int) string { return strings.Repeat("a/", (n-1)/2) + "aa"[:2-n%2] }

// rest is what the first of some things has beside, for them to have so many bytes together.
func rest(i, all, each int) int {
	if i > 0 {
		return 0
	}
	return all - (all+1)/each*each
}

// A list that is not charged yet waits for memory as all else does. One whose answer holds some is asked for again.
func TestListsWaitForMemory(t *testing.T) {
	t.Parallel()
	const text = budget.SmallBytes + 1
	memory := budget.New(64 << 20)
	gone, cancel := context.WithCancel(t.Context())
	cancel() // nobody waits
	ctx, hold := memory.With(gone, "acme", 0)
	other, ok := memory.TryAcquire("acme", memory.Share()-text)
	testbed.Require(t, ok && hold.Grow(text), "the share is not there")
	testbed.Check(t, farm.CodeOf(chargeList(ctx, text)) == farm.CodeExhausted, "a list that holds memory waits for more")
	hold.Release()
	more, ok := memory.TryAcquire("acme", text)
	testbed.Require(t, ok, "the rest of the share is not there")
	testbed.Check(t, chargeList(ctx, text-1) == nil, "a short list waits")
	testbed.Check(t, errors.Is(chargeList(ctx, text), context.Canceled), "a long list does not wait")
	other.Release()
	more.Release()
	testbed.Must(t, chargeList(ctx, text))
	testbed.Check(t, hold.Bytes() == text*resultWeight, "%d bytes are held", hold.Bytes())
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
		testbed.Must(t, n.UseConnection(t.Context(), box.ID, func() *client.Client { return agent }))
		worker := farm.NewID("wrk_")
		b.Register(worker)
		request := &farm.FileRequest{Op: farm.FileMany, Path: ".", Parts: []farm.InputFile{{Path: "large"}, {Path: "a", Content: []byte("1"), Size: 1}, {Path: "d/b"}}}
		job := b.Accept(farm.KindFile, box.ID, &farm.Request{File: request}, func(a *store.Accept) {
			request.Parts[0].Staged = farm.StagingOf(a.Job.Ref()) + "large"
			_, err := b.Blobs.Put(t.Context(), request.Parts[0].Staged, strings.NewReader("12345"), 5, blob.PutOptions{})
			testbed.Must(t, err)
		})
		claim := b.Claim(job, worker)
		got, err := x.File(t.Context(), Task{Claim: claim})
		testbed.Must(t, err)
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

func TestContentType(t *testing.T) {
	t.Parallel()
	png := []byte("\x89PNG\r\n\x1a\n")
	for _, s := range []struct {
		name, want string
		first      []byte
	}{
		{"a.csv", "text/csv; charset=utf-8", nil},
		{"A.CSV", "text/csv; charset=utf-8", png},
		{"b.json", "application/json", nil},
		{"p.png", "image/png", []byte("no png")},
		{"noext", "image/png", png},
		{"noext", "text/plain; charset=utf-8", []byte("words")},
		{"noext", "application/octet-stream", nil},
		{".bashrc", "text/plain; charset=utf-8", []byte("alias")},
		{"x.parquet", "application/vnd.apache.parquet", png},
		{"dir.csv/x", "application/octet-stream", nil},
		{"x.unknownext", "application/octet-stream", []byte{0, 1, 2}},
	} {
		got := contentType(s.name, s.first)
		testbed.Check(t, got == s.want, "contentType(%q, %q) = %q, want %q", s.name, s.first, got, s.want)
	}
	for mime, want := range map[string]string{"image/png": ".png", "application/vnd.plotly.v1+json": ".json", "x/y": ".bin", "": ".bin", "text/html": ".html"} {
		got := extensionOf(mime)
		testbed.Check(t, got == want, "extensionOf(%q) = %q, want %q", mime, got, want)
	}
}

func TestSafeName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"a.txt": "a.txt", "a b.txt": "a b.txt", "ä世.csv": "ä世.csv", "a/b\\c:d": "a_b_c_d", "..": "file", " . ": "file", "": "file",
		"a\x00\n\x7f": "a___", "\xff.bin": "_.bin", "50%#1?.txt": "50__1_.txt", `"<|>*`: "_____",
	} {
		got := safeName(name)
		testbed.Check(t, got == want, "safeName(%q) = %q, want %q", name, got, want)
	}
	got := safeName(strings.Repeat("世", 100) + ".csv")
	testbed.Check(t, len(got) <= 200 && strings.HasSuffix(got, ".csv") && utf8.ValidString(got), "a long name becomes %q", got)
}

func FuzzSafeName(f *testing.F) {
	for _, s := range []string{"", "..", "a/../b", "\xff\xfe", strings.Repeat("é", 300), "x\x00y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got := safeName(name)
		if got == "" || got == "." || got == ".." || len(got) > 200 || !utf8.ValidString(got) || strings.ContainsAny(got, "/\\\x00\r\n") {
			t.Fatalf("safeName(%q) = %q", name, got)
		}
	})
}

func TestExactReader(t *testing.T) {
	t.Parallel()
	read := func(r io.Reader, size int64) (string, *exactReader, error) {
		x := &exactReader{r: io.LimitReader(r, size), left: size}
		got, err := io.ReadAll(x)
		return string(got), x, err
	}
	got, x, err := read(strings.NewReader("12345 and more"), 5)
	testbed.Check(t, got == "12345" && err == nil && !x.broken, "a file that grew: %q %v", got, err)
	_, x, err = read(strings.NewReader("123"), 5)
	testbed.Check(t, errors.Is(err, errChanged) && x.broken, "a file that shrank: %v", err)
	_, x, err = read(iotest.ErrReader(workertest.ErrTest), 5)
	testbed.Check(t, errors.Is(err, errChanged) && x.broken, "a stream that broke: %v", err)
	got, x, err = read(iotest.OneByteReader(strings.NewReader("12345")), 5)
	testbed.Check(t, got == "12345" && err == nil && !x.broken, "byte by byte: %q %v", got, err)
	got, _, err = read(strings.NewReader("x"), 0)
	testbed.Check(t, got == "" && err == nil, "an empty file: %q %v", got, err)
	a := agenttest.Start(t, "/usr/bin:/bin", nil)
	err = (&exactReader{}).explain(a.Client)
	testbed.Check(t, errors.Is(err, errChanged), "over an open stream: %v", err)
	testbed.Must(t, a.Client.Close())
	err = (&exactReader{}).explain(a.Client)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "over a stream that broke: %v", err)
}

func TestPart(t *testing.T) {
	t.Parallel()
	for _, s := range []struct{ size, offset, length, from, n int64 }{
		{10, 0, 0, 0, 10},
		{10, 3, 0, 3, 7},
		{10, 3, 4, 3, 4},
		{10, 8, 4, 8, 2},
		{10, 10, 1, 10, 0},
		{10, 99, 1, 10, 0},
		{10, -3, 0, 7, 3},
		{10, -3, 2, 7, 2},
		{10, -99, 0, 0, 10},
		{0, 0, 0, 0, 0},
		{0, -1, 5, 0, 0},
	} {
		from, n := part(s.size, s.offset, s.length)
		testbed.Check(t, from == s.from && n == s.n, "part(%d, %d, %d) = %d, %d; want %d, %d", s.size, s.offset, s.length, from, n, s.from, s.n)
	}
}

// What an agent says of a file that is read reaches records and callers, and a negative size used to crash the process.
func TestAFileThatCannotBeBreaksTheProtocol(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, n := b.runner()
	box := b.Ready()
	e := &execution{job: &farm.Job{ID: "job_x", Tenant: workertest.Tenant}, sandbox: b.Sandbox(box)}
	read := Task{Claim: &store.Claim{Job: e.job, Request: &farm.Request{File: &farm.FileRequest{Op: farm.FileRead, Path: "a"}}}}
	entry := ""
	c := workertest.Hostile(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Entry", entry) }))
	testbed.Must(t, n.UseConnection(t.Context(), box.ID, func() *client.Client { return c }))
	for change, can := range map[string]bool{
		``: true, `"path":"../../x"`: false, `"path":"/etc/passwd"`: false, `"path":"b/"`: false, `"size":-5`: false, `"mode":"rwx"`: false, `"mode":""`: false, `"type":"door"`: false,
	} {
		entry = strings.ReplaceAll(`{"path":"a","size":0,"mode":"0644","modified_at":"2026-01-02T15:04:05Z","type":"file",`+change+`}`, ",}", "}")
		_, copied := x.copyFile(t.Context(), c, e, "a", 0)
		_, answered := x.readFile(t.Context(), c, read)
		for what, err := range map[string]error{"copied": copied, "read": answered} {
			if can && err != nil || !can && !errors.Is(err, ErrProtocol) {
				t.Errorf("%s, %s: %v", entry, what, err)
			}
		}
	}
}

// A file that is uploaded takes memory that nobody is charged for, also while it waits for its buffer, so a tenant has few of them open at once.
func TestFilesOfATenantAreUploadedInTurns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, _ := b.runner()
	opened := 0
	c := workertest.Hostile(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		opened++
		w.Header().Set("X-Entry", `{"path":"a","size":`+r.URL.Query().Get("path")+`,"mode":"0644","type":"file"}`)
	}))
	box := b.Sandbox(b.Ready())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	copied := func(ctx context.Context, tenant, path string) error {
		_, err := x.copyFile(ctx, c, &execution{job: &farm.Job{ID: "job_x", Tenant: tenant}, sandbox: box}, path, 0)
		return err
	}
	var places []*budget.Place
	for range openFiles/2 - 1 {
		places = append(places, x.reading.Ask(workertest.Tenant))
	}
	for range 2 { // a file that is copied leaves its place, and so does one that cannot be
		testbed.Must(t, copied(t.Context(), workertest.Tenant, "0"))
		testbed.Check(t, errors.Is(copied(t.Context(), workertest.Tenant, "-1"), ErrProtocol), "a file that cannot be is copied")
	}
	places = append(places, x.reading.Ask(workertest.Tenant))
	before := opened
	testbed.Check(t, errors.Is(copied(ended, workertest.Tenant, "0"), context.Canceled) && opened == before, "without a place a file was opened")
	testbed.Must(t, copied(t.Context(), "rival", "0"))
	read := Task{Claim: &store.Claim{Job: &farm.Job{ID: "job_x", Tenant: workertest.Tenant}, Request: &farm.Request{File: &farm.FileRequest{Op: farm.FileRead, Path: "0"}}}}
	_, err := x.readFile(t.Context(), c, read)
	testbed.Check(t, err == nil, "a caller's read waits for uploads: %v", err)
	for _, place := range places {
		place.Leave()
	}
}

// An agent that got almost none of its sandbox's cores delivered a file for hours, in buffers that others waited for.
func TestAFileThatComesTooSlowlyBreaksOff(t *testing.T) {
	t.Parallel()
	const large = 32 << 20 // comes in time, in eighths
	for name, c := range map[string]struct {
		size  int
		bytes int // that come at once
		every time.Duration
		ends  time.Duration // when it breaks off; 0: it does not
	}{
		"FastEnough": {4 << 20, httpserver.PaceBytes, time.Second, 0},
		"TooSlow":    {4 << 20, httpserver.PaceBytes / 2, time.Second, 2*fileGrace - time.Second},
		"ByteByByte": {4 << 20, 1, 10 * time.Second, fileGrace},
		"Late":       {4 << 20, 1 << 20, fileGrace - 1, 0},
		"TooLate":    {4 << 20, 1 << 20, fileGrace + 1, fileGrace},
		"InTime":     {large, large / 8, timeOf(large)/8 - 1, 0},
		"TooLong":    {large, large / 8, timeOf(large)/8 + 1, timeOf(large)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from, to := io.Pipe()
				var sender sync.WaitGroup
				defer sender.Wait()
				sender.Go(func() {
					for left := c.size; left > 0; left -= c.bytes {
						time.Sleep(c.every)
						if _, err := to.Write(make([]byte, min(left, c.bytes))); err != nil {
							return
						}
					}
				})
				f := &openFile{from, httpserver.NewPace(fileGrace, timeOf(int64(c.size))), func() { _ = to.CloseWithError(context.Canceled) }}
				defer func() { _ = f.Close() }()
				began := time.Now()
				_, err := io.ReadFull(&exactReader{r: f, left: int64(c.size)}, make([]byte, c.size))
				if c.ends == 0 {
					testbed.Must(t, err)
					return
				}
				took := time.Since(began)
				testbed.Check(t, errors.Is(err, errChanged) && took >= c.ends && took < c.ends+time.Second, "after %s it ended with %v, want %s", took, err, c.ends)
			})
		})
	}
}

// The end of a read that takes too long ends the request to the agent.
func TestOpenFilesCanBeEnded(t *testing.T) {
	t.Parallel()
	c := workertest.Hostile(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Entry", `{"path":"a","size":10,"mode":"0644","type":"file"}`)
		_, _ = w.Write([]byte("x"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	r, _, err := open(t.Context(), c, "a", 0, 0)
	testbed.Must(t, err)
	f := r.(*openFile) //nolint:errcheck // open returns no other
	_, err = f.Read(make([]byte, 1))
	testbed.Must(t, err)
	f.pace.Took(0, fileGrace)
	_, err = f.Read(make([]byte, 1))
	testbed.Check(t, err != nil, "a read goes on without end")
	testbed.Must(t, f.Close())
}

func TestEventsOutliveAnOutageOfRedis(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Register("w1")
	x, _ := b.runner()
	box := b.Ready()
	job := b.Command(box, "true")
	claim := b.Claim(job, "w1")
	e := &execution{job: claim.Job, request: claim.Request, sandbox: claim.Sandbox, collect: newCollector(claim.Job, claim.Request, x.cfg.Limits, 0, room{})}
	testbed.Must(t, e.collect.add(start(1, 0)))
	testbed.Must(t, e.collect.add(out(2, "kept")))
	b.Redis.SetError("LOADING Redis is away")
	stopping, stop := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { stop(node.ErrStopping) })
	err := x.publish(stopping, e)
	testbed.Require(t, errors.Is(err, node.ErrStopping), "publish to a Redis that is down, until the worker stops = %v", err)
	time.AfterFunc(10*time.Millisecond, func() { b.Redis.SetError("") })
	testbed.Must(t, e.collect.add(out(3, " too")))
	testbed.Must(t, x.publish(t.Context(), e))
	got := b.Stdout(job)
	testbed.Require(t, got == "kept too", "events say %q", got)
}
