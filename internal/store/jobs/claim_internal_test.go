package jobs

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// oneDocument is an object store with one document, whatever its key.
type oneDocument string

func (oneDocument) PutDocument(context.Context, string, []byte) error            { return nil }
func (d oneDocument) GetDocument(context.Context, string) ([]byte, error)        { return []byte(d), nil }
func (oneDocument) Delete(context.Context, ...string) error                      { return nil }
func (oneDocument) AbortUploads(context.Context, string, time.Time) (int, error) { return 0, nil }
func (oneDocument) DeletePrefix(context.Context, string, ...string) (int, error) { return 0, nil }

func TestRequestOfAClaimCanBeForgotten(t *testing.T) {
	t.Parallel()
	s := &Store{DB: &db.DB{Documents: oneDocument(`{"context":"c"}`)}}
	c := &Claim{Job: &farm.Job{ID: "job_1"}, request: db.Reference + "k"}
	for range 2 {
		err := s.LoadRequest(t.Context(), c)
		testbed.Require(t, err == nil && c.Request != nil && c.Request.Context == "c", "LoadRequest = %v, %+v", err, c.Request)
		testbed.Check(t, c.ForgetRequest() && c.Request == nil, "ForgetRequest left %+v", c.Request)
	}
	inline := &Claim{Job: c.Job, Request: &farm.Request{}}
	testbed.Check(t, !inline.ForgetRequest() && inline.Request != nil, "ForgetRequest dropped a request that is no document")
}

// A large segment of events is decoded on a core of its tenant, of which it has half: here it has none left.
func TestSegmentsOfEventsAreDecodedOnACore(t *testing.T) {
	t.Parallel()
	ctx := testbed.WithoutCore(t, budget.New(0), "acme")
	line := `{"id":"1-0","text":""}` + "\n"
	for size, want := range map[int]bool{budget.SmallBytes: true, budget.SmallBytes + 1: false} {
		data := strings.Replace(line, `""`, `"`+strings.Repeat("x", size-len(line))+`"`, 1)
		events, err := decodeSegment(ctx, []byte(data), "")
		decoded := len(data) == size && len(events) == 1
		testbed.Check(t, decoded == want && errors.Is(err, context.Canceled) != want, "%d bytes, without a core: decoded %v, %v", size, decoded, err)
	}
}

// errStored says that a document would be stored: it was encoded.
var errStored = errors.New("stored")

type noDocuments struct{ oneDocument }

func (noDocuments) PutDocument(context.Context, string, []byte) error { return errStored }

// A large result is encoded on a core of its tenant, of which it has half: here it has none left.
func TestResultsAreEncodedOnACore(t *testing.T) {
	t.Parallel()
	memory := budget.New(0)
	s := &Store{DB: &db.DB{Documents: noDocuments{}}}
	long := func(n int) string { return strings.Repeat("x", n) }
	for size, want := range map[int]bool{budget.SmallBytes - 1: true, budget.SmallBytes: true, budget.SmallBytes + 1: false} {
		for what, r := range map[string]*farm.Result{
			"Output":   {Execute: &farm.ExecuteResult{Stdout: long(size / 2), Stderr: long(size - size/2)}},
			"Display":  {Execute: &farm.ExecuteResult{Rich: []farm.RichResult{{Data: long(size - resultEntry)}}}},
			"Commands": {Command: &farm.CommandResult{Commands: []farm.CommandOutcome{{Stdout: long(size - resultEntry)}}}},
			"Install":  {Install: &farm.InstallResult{Stderr: long(size)}},
			"List":     {File: &farm.FileResult{Entries: []farm.FileEntry{{Path: long(size - resultEntry)}}}},
			"File":     {File: &farm.FileResult{Content: make([]byte, size)}},
			"Files":    {Artifacts: []farm.Artifact{{Path: long(size - resultEntry)}}},
			"Packages": {Packages: make([]farm.Package, (size+resultEntry-1)/resultEntry)},
		} {
			_, err := s.Finish(testbed.WithoutCore(t, memory, "acme"), Finish{Ref: farm.Ref{Tenant: "acme", ID: "job_1"}, State: farm.JobCompleted, Result: r})
			testbed.Check(t, errors.Is(err, errStored) == want && errors.Is(err, context.Canceled) != want, "%s of %d bytes, without a core: %v", what, size, err)
		}
	}
}

// An upload of many files has nothing that callers may not see, and is stored once. It is encoded on a core, as text of its size is.
func TestUploadsOfManyFilesAreStoredOnce(t *testing.T) {
	t.Parallel()
	request := func(f farm.InputFile) *farm.Request {
		return &farm.Request{File: &farm.FileRequest{Op: farm.FileMany, Path: ".", Parts: []farm.InputFile{f}}}
	}
	seen := request(farm.InputFile{Path: strings.Repeat("<", 1000)})
	for name, c := range map[string]struct {
		asked   *farm.Request
		private bool
	}{"Empty": {seen, false}, "Staged": {request(farm.InputFile{Path: "a", Staged: "key"}), true}} {
		private, whole, err := encodeRequest(c.asked, seen)
		testbed.Require(t, err == nil && (len(private) > 0) == c.private, "%s: private %q, %v", name, private, err)
		testbed.Check(t, len(whole) < 1200, "%s: 1000 bytes of paths are %d bytes", name, len(whole))
		testbed.Check(t, requestBytes(seen) > 1000, "%s: a request of %d bytes", name, requestBytes(seen))
		shown, err := decodeRequest(t.Context(), string(whole))
		testbed.Must(t, err)
		testbed.Diff(t, name, seen, shown)
	}
}

// Whenever what is known of the waiting tenants expired, all callers read it at once.
func TestWaitingTenantsAreReadOnceForAllCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int32
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer rdb.Close()
		rdb.AddHook(testbed.Hook(func(cmds []redis.Cmder, _ func(...redis.Cmder) error) error {
			if names, ok := cmds[0].(*redis.StringSliceCmd); ok {
				reads.Add(1)
				for range 1000 { // others come meanwhile
					runtime.Gosched()
				}
				names.SetVal([]string{"acme"})
				return nil
			}
			for _, cmd := range cmds {
				cmd.(*redis.IntCmd).SetVal(1)
			}
			return nil
		}))
		s := &Store{DB: &db.DB{Redis: rdb}, waiting: newWaitingTenants()}
		for round := range int32(3) {
			var callers sync.WaitGroup
			for range 100 {
				callers.Go(func() {
					tenants, err := s.waiting.tenants(t.Context(), s, "cpu")
					testbed.Check(t, err == nil && len(tenants) == 1, "tenants = %q, %v", tenants, err)
				})
			}
			callers.Wait()
			testbed.Check(t, reads.Load() == round+1, "100 callers in each of %d seconds read the tenants %d times", round+1, reads.Load())
			time.Sleep(waitingTTL)
		}
		testbed.Must(t, s.waiting.turn.Acquire(t.Context(), 1)) // while Redis does not answer
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := s.waiting.tenants(ctx, s, "cpu")
		testbed.Check(t, errors.Is(err, context.Canceled), "a caller that does not wait got %v", err)
	})
}

// slowFor are documents of which those of one tenant do not come.
type slowFor struct {
	db.Documents
	tenant string
	asked  chan struct{}
}

func (d slowFor) GetDocument(ctx context.Context, key string) ([]byte, error) {
	if strings.HasPrefix(key, d.tenant) {
		d.asked <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return []byte("{}"), nil
}

// Long manifests that a tenant waits for, as for its own memory, do not hold up those of others.
func TestLongManifestsOfATenantDelayNoOther(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 2*readingManifests)
	s := &Store{DB: &db.DB{Documents: slowFor{tenant: "a", asked: asked}}, manifests: newManifestCache()}
	ctx, end := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer end()
	for range 2 * readingManifests {
		readers.Go(func() {
			_ = s.decodeManifest(ctx, &manifest{job: farm.Ref{Tenant: "a", ID: "1"}, value: db.Reference + "a/1"})
		})
	}
	for range readingManifests / 2 {
		<-asked
	}
	testbed.Must(t, s.decodeManifest(t.Context(), &manifest{job: farm.Ref{Tenant: "b", ID: "2"}, value: db.Reference + "b/2"}))
}

// What looks at all artifacts of a job does so on a core of its tenant, of which it has half, also where the list is in memory: here it has none left.
func TestListsOfArtifactsAreLookedAtOnACore(t *testing.T) {
	t.Parallel()
	job, memory := farm.Ref{Tenant: "acme", ID: "job_" + strings.Repeat("0", 26)}, budget.New(0)
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = rdb.Close() }()
	rdb.AddHook(testbed.Hook(func(cmds []redis.Cmder, _ func(...redis.Cmder) error) error {
		for _, cmd := range cmds {
			if fields, ok := cmd.(*redis.SliceCmd); ok {
				fields.SetVal([]any{"v", db.Reference + "k", "1"})
			}
		}
		return nil
	}))
	at := time.Unix(1e9, 0)
	for size, want := range map[int]bool{budget.SmallBytes: true, budget.SmallBytes + 1: false} {
		s := &Store{DB: &db.DB{Redis: rdb, Now: func() time.Time { return at }}, manifests: newManifestCache()}
		m := &manifest{job: job, version: "v", size: size}
		m.put([]farm.Artifact{{ID: farm.ArtifactID(job.ID, "a"), Path: "a", Name: "a", ExpiresAt: at.Add(time.Hour)}})
		s.manifests.add(m)
		for what, call := range map[string]func(ctx context.Context) (int, error){
			"Artifact": func(ctx context.Context) (int, error) {
				a, err := s.Artifact(ctx, farm.Ref{Tenant: "acme", ID: farm.ArtifactID(job.ID, "a")})
				if err != nil {
					return 0, err
				}
				return len(a.Path), nil
			},
			"ArtifactsOfJob": func(ctx context.Context) (int, error) {
				list, err := s.ArtifactsOfJob(ctx, job)
				return len(list), err
			},
			"Artifacts": func(ctx context.Context) (int, error) {
				list, _, err := s.Artifacts(ctx, "acme", ArtifactFilter{JobID: job.ID}, db.Page{})
				return len(list), err
			},
			"DeleteArtifacts": func(ctx context.Context) (int, error) { // of another one: there is nothing to write
				_, err := s.DeleteArtifacts(ctx, []farm.Artifact{{ID: "art_1", Tenant: "acme", JobID: job.ID}})
				return 1, err
			},
		} {
			n, err := call(testbed.WithoutCore(t, memory, "acme"))
			testbed.Check(t, (err == nil && n == 1) == want && errors.Is(err, context.Canceled) != want, "%s of a list of %d bytes, without a core: %d, %v", what, size, n, err)
		}
	}
}
