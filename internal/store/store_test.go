package store_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOnMiniredis(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) redis.UniversalClient {
		t.Helper()
		return client(t, miniredis.RunT(t).Addr())
	})
}

func client(t *testing.T, addr string) redis.UniversalClient {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestRedisDownIsUnavailable(t *testing.T) {
	t.Parallel()
	way := testbed.NewProxyTo(t, "tcp", miniredis.RunT(t).Addr(), nil)
	s := store.New(client(t, way.Address()), storetest.NoTasks, store.Options{})
	t.Cleanup(func() { _ = s.Close() })
	way.Refuse(true)
	way.Cut()
	ctx, ref := t.Context(), farm.Ref{Tenant: "acme", ID: "job_x"}
	for name, call := range map[string]func() error{
		"Ping":   func() error { return s.Ping(ctx) },
		"Accept": func() error { _, err := s.Accept(ctx, storetest.Create()); return err },
		"Job":    func() error { _, err := s.Job(ctx, ref); return err },
		"Claim":  func() error { _, err := s.Claim(ctx, ref, "w"); return err },
		"Watch":  func() error { _, err := s.Watch(ctx, "job_x"); return err },
		"Jobs":   func() error { _, _, err := s.Jobs(ctx, "acme", store.JobFilter{}, store.Page{}); return err },
		"Lock":   func() error { _, err := s.Lock(ctx, "l", "o", 1e9); return err },
	} {
		err := call()
		testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "%s = %v, code %q; want unavailable", name, err, farm.CodeOf(err))
	}
	way.Refuse(false)
	_, err := s.Accept(ctx, storetest.Create())
	testbed.Check(t, err == nil, "Accept after Redis came back = %v", err)
	if w, err := s.Watch(ctx, "job_x"); err != nil {
		t.Errorf("Watch after Redis came back = %v", err)
	} else {
		w.Close()
	}
}

// db/keys.go owns the names of keys: no script and no other Go code joins a name to the prefix of the farm or of a slot.
func TestKeysHaveOneOwner(t *testing.T) {
	t.Parallel()
	joins := map[string]*regexp.Regexp{
		".lua": regexp.MustCompile(`\b[PG] *\.\.|\.\. *[PG]\b|KEYS\[\d\] *\.\.`),
		".go":  regexp.MustCompile(`refix *\+ *"|"[^"\n]*\}:[a-z"]`),
	}
	seen := 0
	err := fs.WalkDir(os.DirFS("."), ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && entry.Name() == "storetest" {
			return errSkip(err)
		}
		join := joins[filepath.Ext(file)]
		if join == nil || file == "db/keys.go" || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		seen++
		for i, line := range strings.Split(string(text), "\n") {
			code, _, _ := strings.Cut(line, map[string]string{".lua": "--", ".go": "// "}[filepath.Ext(file)])
			if join.MatchString(code) {
				t.Errorf("%s:%d makes a key of its own: %s", file, i+1, strings.TrimSpace(line))
			}
		}
		return err
	})
	testbed.Check(t, err == nil && seen >= 50, "looked at %d files: %v", seen, err)
}

// errSkip skips a folder unless it could not be read.
func errSkip(err error) error {
	if err == nil {
		return fs.SkipDir
	}
	return err
}

// A tenant with the name of a slot of the farm would have its keys among those of the farm.
func TestNoTenantHasASlotOfTheFarm(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("db/keys.go")
	testbed.Must(t, err)
	slots := regexp.MustCompile(`(?m)^\tSlot\w+ += "([^"]+)"`).FindAllStringSubmatch(string(text), -1)
	testbed.Require(t, len(slots) >= 9, "only %d slots were found: the pattern is wrong", len(slots))
	for _, slot := range slots {
		testbed.Check(t, !farm.ValidTenant(slot[1]), "%s can be the name of a tenant", slot[1])
	}
}

// waits answers WAITAOF, which Redis has since 7.2, for a server without it. It counts the calls.
type waits struct {
	mu     sync.Mutex
	synced int64 // files that have synced
	calls  int
}

func (w *waits) hook(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
	last := cmds[len(cmds)-1]
	if last.Name() != "waitaof" {
		return next(cmds...)
	}
	_ = w.answer(last)
	if len(cmds) == 1 {
		return nil
	}
	return next(cmds[:len(cmds)-1]...)
}

func (w *waits) answer(cmd redis.Cmder) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	cmd.(*redis.Cmd).SetVal([]any{w.synced, int64(0)})
	return nil
}

// count gives the number of calls since the last one.
func (w *waits) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.calls = 0 }()
	return w.calls
}

// waitingStore is a store with DurabilityAOF.
func waitingStore(t *testing.T) (*store.Store, *waits) {
	t.Helper()
	w := &waits{synced: 1}
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	rdb.AddHook(testbed.Hook(w.hook))
	t.Cleanup(func() { _ = rdb.Close() })
	return store.New(rdb, storetest.NoTasks, store.Options{Durability: store.DurabilityAOF}), w
}

func TestAcceptAndFinishWaitForTheFile(t *testing.T) {
	t.Parallel()
	s, w := waitingStore(t)
	err := s.CheckDurability(t.Context())
	testbed.Check(t, err == nil && w.count() == 1, "CheckDurability: %v", err)
	err = s.Heartbeat(t.Context(), farm.Worker{ID: "w1"})
	testbed.Check(t, err == nil && w.count() == 0, "a heartbeat waited, %v", err)
	for _, limit := range []int{2, 1} { // the first calls send their scripts once more
		waited := func(what string, err error) {
			t.Helper()
			n := w.count()
			testbed.Check(t, err == nil && n >= 1 && n <= limit, "%s waited %d times, %v", what, n, err)
		}
		a := storetest.Create()
		_, err := s.Accept(t.Context(), a)
		waited("Accept", err)
		ref := a.Job.Ref()
		claim, err := s.Claim(t.Context(), ref, "w1")
		testbed.Require(t, err == nil && w.count() == 0, "Claim: %v", err)
		waited("Checkpoint", s.Checkpoint(t.Context(), ref, claim.Job.Attempt, []byte("{}")))
		_, err = s.Finish(t.Context(), store.Finish{Ref: ref, Attempt: claim.Job.Attempt, State: farm.JobCompleted})
		waited("Finish", err)
	}
}

// What is stored but not confirmed in time is an error, so that the caller repeats the call, which waits again.
func TestUnconfirmedWriteIsRepeated(t *testing.T) {
	t.Parallel()
	s, w := waitingStore(t)
	w.synced = 0
	a := storetest.Create()
	_, err := s.Accept(t.Context(), a)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "unconfirmed Accept: %v", err)
	w.synced = 1
	w.count()
	out, err := s.Accept(t.Context(), a)
	testbed.Check(t, err == nil && w.count() == 1 && out.Job.ID == a.Job.ID, "repeated Accept: %+v, %v", out, err)
	claim, err := s.Claim(t.Context(), a.Job.Ref(), "w1")
	testbed.Must(t, err)
	f := store.Finish{Ref: a.Job.Ref(), Attempt: claim.Job.Attempt, State: farm.JobCompleted}
	w.synced = 0
	_, err = s.Finish(t.Context(), f)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "unconfirmed Finish: %v", err)
	w.synced = 1
	_, err = s.Finish(t.Context(), store.Finish{Ref: f.Ref, Attempt: f.Attempt + 1, State: f.State})
	testbed.Check(t, err != nil, "another attempt finished the job")
}

// Many jobs that end at once wait for the file together.
func TestWaitsAreShared(t *testing.T) {
	t.Parallel()
	s, w := waitingStore(t)
	const jobs = 64
	var wg sync.WaitGroup
	errs := make([]error, jobs)
	for i := range jobs {
		a := storetest.Create()
		wg.Go(func() { _, errs[i] = s.Accept(t.Context(), a) })
	}
	wg.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		t.Errorf("Accept: %v", errs[i])
	}
	if n := w.count(); n > jobs {
		t.Errorf("%d waits for %d jobs", n, jobs)
	} else {
		t.Logf("%d waits for %d jobs", n, jobs)
	}
}

func TestDurableAfter(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	for d, want := range map[store.Durability]time.Duration{
		"": 0, store.DurabilityAOF: 0, store.DurabilityReplica: 0, store.DurabilityEverySec: 2 * time.Second,
	} {
		testbed.Diff(t, fmt.Sprintf("%q: durable after", d), want, store.New(rdb, storetest.NoTasks, store.Options{Durability: d}).DurableAfter())
	}
}
