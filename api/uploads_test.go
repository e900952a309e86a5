package api_test

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const mib = 1 << 20

// behindAJob makes a sandbox in which uploads wait behind a running job, with a quota for what the tenant stores. It returns the sandbox's files.
func behindAJob(t *testing.T, quota string) (b *bundle, files string) {
	t.Helper()
	b = setup(t, withAdmin)
	box := "/v1/sandboxes/" + b.sandbox(asAcme()...)
	get[wire.Job](b, http.StatusAccepted, "POST", box+"/execute?wait=0", `{"code": "block"}`, asAcme()...)
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"max_stored_mb": `+quota+`}`, asOps()...)
	return b, box + "/files/"
}

// kept is how many bytes of uploads count as stored.
func (b *bundle) kept() int64 {
	b.t.Helper()
	s, err := b.store.Stored(b.t.Context(), "acme")
	testbed.Must(b.t, err)
	return s.Kept
}

// An upload at the quota is accepted, and one byte more is refused, with and without a known length; none of it stays.
func TestUploadsCountAsStored(t *testing.T) {
	t.Parallel()
	const limit = 2*mib - farm.ObjectBytes
	for name, body := range map[string]func([]byte) any{
		"KnownLength":   func(p []byte) any { return p },
		"UnknownLength": func(p []byte) any { return io.MultiReader(bytes.NewReader(p)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, files := behindAJob(t, "2")
			p := b.problem(farm.CodeExhausted, http.StatusTooManyRequests, "PUT", files+"a?wait=0", body(make([]byte, limit+1)), asAcme()...)
			if p.Quota == nil || p.Quota.Name != "max_stored_mb" || *p.Quota.Limit != 2 || p.Quota.Used >= 2.1 {
				t.Errorf("refused with %+v", p)
			}
			if b.kept() != 0 || len(b.blobs.keys()) != 0 {
				t.Errorf("a refused upload leaves %d bytes counted, and %v", b.kept(), b.blobs.keys())
			}
			get[wire.Job](b, http.StatusAccepted, "PUT", files+"a?wait=0", body(make([]byte, limit-1)), asAcme()...)
			if b.kept() != 2*mib-1 {
				t.Errorf("%d bytes are counted", b.kept())
			}
			get[wire.Job](b, http.StatusAccepted, "PUT", files+"small?wait=0", "part of the request", asAcme()...)
			b.problem(farm.CodeExhausted, http.StatusTooManyRequests, "PUT", files+"b?wait=0", body(make([]byte, 100_000)), asAcme()...)
			usage := get[wire.Usage](b, http.StatusOK, "GET", "/v1/usage", nil, asAcme()...)
			if q := quotaOf(t, usage.Quotas, "max_stored_mb"); q.Used < 1.99 || q.Used > 2 {
				t.Errorf("the tenant sees %+v", q)
			}
			get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"max_stored_mb": 4}`, asOps()...)
			b.problem(farm.CodeExhausted, http.StatusTooManyRequests, "PUT", files+"c?wait=0", body(make([]byte, limit+2)), asAcme()...)
			get[wire.Job](b, http.StatusAccepted, "PUT", files+"c?wait=0", body(make([]byte, limit+1)), asAcme()...)
			if b.kept() != 4*mib {
				t.Errorf("%d bytes are counted", b.kept())
			}
		})
	}
}

// Several files, a tar and the files of a run count as well.
func TestUploadsOfAllKindsCount(t *testing.T) {
	t.Parallel()
	b, files := behindAJob(t, "1")
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	for _, name := range []string{"a", "b"} {
		w, err := parts.CreateFormFile("file", name)
		testbed.Must(t, err)
		_, _ = w.Write(make([]byte, mib*3/4))
	}
	testbed.Must(t, parts.Close())
	under := strings.TrimSuffix(files, "/")
	b.problem(farm.CodeExhausted, http.StatusTooManyRequests, "POST", under+"?wait=0", form.Bytes(), append(asAcme(), "Content-Type", parts.FormDataContentType())...)
	b.problem(farm.CodeExhausted, http.StatusTooManyRequests, "POST", under+"?wait=0", make([]byte, 2*mib), append(asAcme(), "Content-Type", "application/x-tar")...)
	b.problem(farm.CodeExhausted, http.StatusTooManyRequests, "POST", "/v1/run?wait=0",
		`{"code": "1", "files": [{"path": "a", "content": "`+strings.Repeat("x", 2*mib)+`"}]}`, asAcme()...)
	if b.kept() != 0 || len(b.blobs.keys()) != 0 {
		t.Errorf("refused uploads leave %d bytes counted, and %v", b.kept(), b.blobs.keys())
	}
}

// Each object of an upload counts 48 KiB beside its bytes, in a form and in the files of a run.
func TestEachObjectOfAnUploadCounts(t *testing.T) {
	t.Parallel()
	const objects, limit = 3, mib - 3*farm.ObjectBytes
	for size, status := range map[int]int{limit - 1: http.StatusAccepted, limit: http.StatusAccepted, limit + 1: http.StatusTooManyRequests} {
		contents := []string{strings.Repeat("x", 100_000), strings.Repeat("x", 200_000), strings.Repeat("x", size-300_000)}
		want := int64(size + objects*farm.ObjectBytes)
		if status != http.StatusAccepted {
			want = 0
		}
		for kind, send := range sendings() {
			b, files := behindAJob(t, "1")
			answer := send(b, files, contents)
			if answer.StatusCode != status || b.kept() != want || (len(b.blobs.keys()) != 0) != (want != 0) {
				t.Errorf("%s of %d bytes: status %d, %d bytes are counted, want %d; %d objects are stored", kind, size, answer.StatusCode, b.kept(), want, len(b.blobs.keys()))
			}
		}
	}
}

// A form of one-byte files, of which each was an object of the store, counted 128 bytes.
func TestSmallFilesCountAsStored(t *testing.T) {
	t.Parallel()
	b, files := behindAJob(t, "1")
	form, kind := filesOf(beyondInline(mib / farm.ObjectBytes)...)
	b.problem(farm.CodeExhausted, http.StatusTooManyRequests, "POST", strings.TrimSuffix(files, "/")+"?wait=0", form, append(asAcme(), "Content-Type", kind)...)
	if b.kept() != 0 || len(b.blobs.keys()) != 0 {
		t.Errorf("a refused upload leaves %d bytes counted, and %d objects", b.kept(), len(b.blobs.keys()))
	}
}

// Each twenty objects of an upload count as a request: one of ten thousand small files was thirty thousand calls of the object store, and one request. Each job
// of a batch has its own twenty.
func TestObjectsOfAnUploadCountAsRequests(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		objects, rate int
		accepted      bool
	}{{19, 1, true}, {20, 1, true}, {21, 1, false}, {39, 2, true}, {40, 2, true}, {41, 2, false}} {
		for kind, send := range sendings() {
			b, files := behindAJob(t, "100")
			get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", map[string]int{"requests_per_minute": c.rate}, asOps()...)
			answer := send(b, files, beyondInline(c.objects))
			if accepted := answer.StatusCode == http.StatusAccepted; accepted != c.accepted {
				t.Errorf("%s of %d objects at a rate of %d: status %d", kind, c.objects, c.rate, answer.StatusCode)
			}
			if c.accepted {
				continue
			}
			if answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == "" || b.kept() != 0 || len(b.blobs.keys()) != 0 {
				t.Errorf("%s of %d objects: status %d, leaves %d bytes counted, and %d objects", kind, c.objects, answer.StatusCode, b.kept(), len(b.blobs.keys()))
			}
		}
	}
	b, _ := behindAJob(t, "100")
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"requests_per_minute": 3}`, asOps()...)
	var jobs []map[string]any
	for _, objects := range []int{20, 20, 21} {
		job := runOf(beyondInline(objects)...)
		job["kind"] = "run"
		jobs = append(jobs, job)
	}
	got := get[wire.BatchResult](b, http.StatusMultiStatus, "POST", "/v1/jobs/batch", map[string]any{"jobs": jobs}, asAcme()...)
	for i, out := range got.Jobs {
		if accepted := i < 2; (out.Job != nil) != accepted || !accepted && (out.Error == nil || out.Error.Quota == nil || out.Error.Quota.Name != "requests_per_minute") {
			t.Errorf("job %d of the batch: %+v", i, out)
		}
	}
}

// beyondInline are contents of which all but the first one are objects of the store.
func beyondInline(objects int) []string {
	return append([]string{strings.Repeat("x", 64<<10)}, slices.Repeat([]string{"x"}, objects)...)
}

// filesOf is a form of files with these contents.
func filesOf(contents ...string) (body, kind string) {
	var form strings.Builder
	parts := multipart.NewWriter(&form)
	for i, content := range contents {
		w, _ := parts.CreateFormFile("file", strconv.Itoa(i))
		_, _ = io.WriteString(w, content)
	}
	_ = parts.Close()
	return form.String(), parts.FormDataContentType()
}

// sendings are the ways to upload several files, by name.
func sendings() map[string]func(b *bundle, files string, contents []string) *http.Response {
	return map[string]func(b *bundle, files string, contents []string) *http.Response{
		"form": func(b *bundle, files string, contents []string) *http.Response {
			form, kind := filesOf(contents...)
			answer, _ := b.do("POST", strings.TrimSuffix(files, "/")+"?wait=0", form, append(asAcme(), "Content-Type", kind)...)
			return answer
		},
		"run": func(b *bundle, _ string, contents []string) *http.Response {
			answer, _ := b.do("POST", "/v1/run?wait=0", runOf(contents...), asAcme()...)
			return answer
		},
	}
}

// runOf is a run with files of these contents.
func runOf(contents ...string) map[string]any {
	files := make([]wire.InputFile, len(contents))
	for i, content := range contents {
		files[i] = wire.InputFile{Path: strconv.Itoa(i), Content: &content}
	}
	return map[string]any{"code": "1", "files": files}
}

// Fifty uploads at once get what the quota allows, and no more.
func TestUploadsRaceForTheQuota(t *testing.T) {
	t.Parallel()
	const callers, fit, share = 50, 8, mib/8 - farm.ObjectBytes
	b, files := behindAJob(t, "1")
	var wg sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	for range callers {
		wg.Go(func() {
			answer, _ := b.do("PUT", files+"a?wait=0", make([]byte, share), asAcme()...)
			mu.Lock()
			defer mu.Unlock()
			statuses[answer.StatusCode]++
		})
	}
	wg.Wait()
	if statuses[http.StatusAccepted] != fit || statuses[http.StatusTooManyRequests] != callers-fit || b.kept() != fit*farm.StoredBytes(share) {
		t.Errorf("statuses %v, %d bytes are counted", statuses, b.kept())
	}
}

// An upload that breaks off counts no more, nor does one whose job is refused.
func TestRefusedUploadsAreFreed(t *testing.T) {
	t.Parallel()
	b, files := behindAJob(t, "10")
	body, upload := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, b.web.URL+files+"a?wait=0", body)
	testbed.Must(t, err)
	request.Header.Set("Authorization", "Bearer "+key)
	var sent sync.WaitGroup
	sent.Go(func() {
		if answer, err := http.DefaultClient.Do(request); err == nil {
			_ = answer.Body.Close()
		}
	})
	_, err = upload.Write(make([]byte, mib))
	testbed.Must(t, err)
	testbed.Until(t, "the upload is counted", func() bool { return b.kept() > 0 })
	_ = upload.CloseWithError(io.ErrUnexpectedEOF)
	sent.Wait()
	testbed.Until(t, "the upload that broke off is freed", func() bool { return b.kept() == 0 && len(b.blobs.keys()) == 0 })
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"max_queued": 1}`, asOps()...)
	b.problem(farm.CodeExhausted, http.StatusTooManyRequests, "PUT", files+"a?wait=0", make([]byte, mib), asAcme()...)
	if b.kept() != 0 || len(b.blobs.keys()) != 0 {
		t.Errorf("a refused upload leaves %d bytes counted, and %v", b.kept(), b.blobs.keys())
	}
}

// What is larger than the disk of the sandbox is refused before it is stored.
func TestUploadsLargerThanTheDisk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	disk := farm.DefaultLimits().Disk.Min
	made := get[wire.Created](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", wire.CreateRequest{Resources: &wire.ResourcesRequest{DiskMB: &disk}})
	files := "/v1/sandboxes/" + made.Sandbox.ID + "/files/"
	size := disk<<20 + mib // a tar of a file that fills the disk is a little larger
	for _, body := range []any{make([]byte, size+1), io.MultiReader(bytes.NewReader(make([]byte, size+1)))} {
		p := b.problem(farm.CodeTooLarge, http.StatusRequestEntityTooLarge, "PUT", files+"a", body)
		if !strings.Contains(p.Detail, "disk_mb") || len(b.blobs.keys()) != 0 {
			t.Errorf("refused with %s; %v is stored", p.Detail, b.blobs.keys())
		}
	}
	for _, n := range []int{size - 1, size} {
		get[wire.FileEntry](b, http.StatusCreated, "PUT", files+"a", make([]byte, n))
	}
	if s, err := b.store.Stored(t.Context(), "default"); err != nil || s != (store.Stored{Kept: s.Kept}) {
		t.Errorf("stored %+v, %v", s, err)
	}
}

// namesOf are paths of so many bytes together, all but the last one as long as a path may be.
func namesOf(total int) (names []string) {
	for ; total > 0; total -= len(names[len(names)-1]) {
		name := fmt.Sprintf("%09d", len(names)) + strings.Repeat("/"+strings.Repeat("<", 200), 20)
		names = append(names, name[:min(farm.MaxPathBytes, total)])
	}
	return names
}

// filesNamed is a form of empty files.
func filesNamed(names []string) (body, kind string) {
	var form strings.Builder
	parts := multipart.NewWriter(&form)
	for _, name := range names {
		_, _ = parts.CreateFormFile("file", name)
	}
	_ = parts.Close()
	return form.String(), parts.FormDataContentType()
}

// The names of 10,000 empty files were 40 MB, which nothing charged, and 240 MB each time they were encoded: one upload ended the process.
func TestPathsOfUploadsAreBounded(t *testing.T) {
	t.Parallel()
	const limit = 2 << 20
	b, files := behindAJob(t, "100")
	for n, code := range map[int]farm.Code{limit - 1: "", limit: "", limit + 1: farm.CodeTooLarge} {
		names := namesOf(n)
		form, kind := filesNamed(names)
		headers := append(asAcme(), "Content-Type", kind)
		inputs := make([]wire.InputFile, len(names))
		for i, name := range names {
			inputs[i] = wire.InputFile{Path: name, Content: new("")}
		}
		run := map[string]any{"code": "1", "files": inputs}
		if code == "" {
			for _, job := range []wire.Job{
				get[wire.Job](b, http.StatusAccepted, "POST", strings.TrimSuffix(files, "/")+"?wait=0", form, headers...),
				get[wire.Job](b, http.StatusAccepted, "POST", "/v1/run?wait=0", run, asAcme()...),
			} {
				whole := get[wire.JobSpec](b, http.StatusOK, "GET", "/v1/jobs/"+job.ID+"/request", nil, asAcme()...)
				if len(whole.Files) != len(names) || whole.Files[1].Path != names[1] {
					t.Errorf("%d bytes of paths: %d files are shown", n, len(whole.Files))
				}
			}
			continue
		}
		for _, p := range []wire.Problem{
			b.problem(code, http.StatusRequestEntityTooLarge, "POST", strings.TrimSuffix(files, "/")+"?wait=0", form, headers...),
			b.problem(code, http.StatusRequestEntityTooLarge, "POST", "/v1/run?wait=0", run, asAcme()...),
		} {
			if !strings.Contains(p.Detail, "more than 2097152 bytes together") {
				t.Errorf("%d bytes of paths: %s", n, p.Detail)
			}
		}
	}
}

// What is held of an upload while more of it is awaited is charged: its sender may be as slow as it likes.
func TestWhatUploadsHoldIsCharged(t *testing.T) {
	t.Parallel()
	var memory *budget.Budget
	f, dir, access := e2bBox(t, withMemory(&memory))
	box, notebook := f.sandbox(bearer(key)...), f.notebook(bearer(key)...)
	many, kind := filesNamed(namesOf(1 << 20))
	long := dir + "/" + strings.Repeat(strings.Repeat("d", 200)+"/", 15)
	names := make([]string, 400)
	for i := range names {
		names[i] = long + strconv.Itoa(i)
	}
	deep, kindOfDeep := filesNamed(names)
	late, kindOfLate := form(field{name: "file", file: "x", value: strings.Repeat("x", 2<<20)}, field{name: "more", value: strings.Repeat("x", 3<<20)})
	for name, c := range map[string]struct {
		target, body string
		headers      []string
		held         int64
		want         int
	}{
		"Paths":    {"/v1/sandboxes/" + box + "/files", many, []string{"Content-Type", kind}, 2 << 20, http.StatusCreated},
		"E2B":      {"/e2b/files", deep, append(access, "Content-Type", kindOfDeep), 2 << 20, http.StatusOK},
		"Notebook": {"/sandbox/" + notebook + "/upload", late.String(), []string{"Content-Type", kindOfLate}, 7 << 20, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			s := f.slow(c.target, key, c.body, c.headers...)
			testbed.Until(t, "it is charged", func() bool { return memory.Stats().Used >= c.held })
			testbed.Diff(t, "it is answered with", c.want, s.finish())
			testbed.Until(t, "it is given back", func() bool { return memory.Stats().Used == 0 })
		})
	}
}
