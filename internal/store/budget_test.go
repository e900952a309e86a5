//go:build integration

package store_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// redisBudget is what Redis keeps of a job at most, whatever its code and its caller do.
const redisBudget = 128 << 10

// knownKeys are all keys that the records of a tenant may have: those of one job or sandbox, of one queue or day, and those of which a tenant
// has one.
var knownKeys = regexp.MustCompile(`^sf:(\{acme\}:(` +
	`(job|ev|seg|req|cp|mf):job_[0-9a-z]+|(sbx|sj|osj|line|stops|pkg|mfbox):sbx_[0-9a-z]+|idem:[0-9a-f]{64}|(out|held):[a-z0-9-]+(/[a-z]+)?|on:[a-z0-9-]+|usage:[0-9-]+|` +
	`seq|open|jobs|boxes|openboxes|nodes|due|docs|callbacks|holds|act|ids|conn|quota|rate|use|used|stored|kept|mfs|mfexp|mem|ended|needed|owed)|\{nodes\}:tenants:n1|tenants)$`)

// TestRedisBytesOfAJob makes jobs of all kinds as large as callers and code can make them, and measures their keys in each phase of their
// lives. No phase exceeds the budget, and no key is of an unknown kind.
func TestRedisBytesOfAJob(t *testing.T) {
	t.Parallel()
	kinds := []farm.JobKind{
		farm.KindCreate, farm.KindRun, farm.KindExecute, farm.KindCommand, farm.KindInstall, farm.KindFile, farm.KindPackages, farm.KindClose,
		farm.KindInterrupt, farm.KindRestart, farm.KindHibernate, farm.KindResume,
	}
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			rdb := testbed.NewRedis(t).Client(t)
			s := store.New(rdb, storetest.NoTasks, store.Options{Documents: storetest.NewDocuments()})
			t.Cleanup(func() { _ = s.Close() })
			for round := range 4 {
				l := &life{T: t, rdb: rdb, s: s, random: rand.New(rand.NewPCG(uint64(round), 1))} //nolint:gosec // the same each time
				l.limit, l.edge = round == 0, round == 1
				l.live(kind)
			}
		})
	}
}

// life is that of one job.
type life struct {
	*testing.T
	rdb    redis.UniversalClient
	s      *store.Store
	random *rand.Rand
	limit  bool // everything is as large as it can be
	edge   bool // everything is as large as it can be in Redis
}

// text is a text of up to n bytes, of characters that JSON writes as they are or as six bytes.
func (l *life) text(n int) string {
	if !l.limit {
		n = l.random.IntN(n + 1)
	}
	return strings.Repeat([]string{"x", "<", "é"}[l.random.IntN(3)], n/2)
}

// upTo is text of up to n bytes, or of as many as just stay in Redis.
func (l *life) upTo(n, inRedis int) string {
	if l.edge {
		return strings.Repeat("x", inRedis)
	}
	return l.text(n)
}

func (l *life) live(kind farm.JobKind) {
	l.Helper()
	ctx, limits := l.Context(), farm.DefaultLimits()
	a := storetest.Create()
	a.Sandbox.Spec.Env = map[string]string{"A": l.upTo(limits.MaxEnvBytes, 100)}
	a.Sandbox.Spec.Labels = map[string]string{}
	for i := range limits.MaxLabels {
		a.Sandbox.Spec.Labels[fmt.Sprint(i)] = l.upTo(limits.MaxLabelBytes, 200)
	}
	a.Request.Sandbox = &a.Sandbox.Spec
	if kind != farm.KindCreate && kind != farm.KindRun {
		box := a.Sandbox
		l.must(l.s.Accept(ctx, a))
		l.must(l.s.Claim(ctx, a.Job.Ref(), "w"))
		for _, state := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
			l.must(l.s.MoveSandbox(ctx, store.Move{Ref: box.Ref(), To: state, Node: "n1"}))
		}
		l.must(l.s.Finish(ctx, store.Finish{Ref: a.Job.Ref(), Attempt: 1, State: farm.JobCompleted}))
		a = storetest.Execute(box.ID)
	}
	a.Job.Kind, a.Job.Hidden = kind, kind == farm.KindPackages
	a.Job.Inline = kind == farm.KindClose || kind == farm.KindInterrupt || kind == farm.KindRestart || a.Job.Hidden
	a.Request.Execute = &farm.ExecuteRequest{Code: l.upTo(2<<20, store.InlineBytes-18_500), Env: map[string]string{"A": l.upTo(limits.MaxEnvBytes, 3000)}}
	a.Request.Files = []farm.InputFile{{Path: "a", Content: []byte(l.upTo(64<<10, 100))}}
	shown := farm.Request{Execute: &farm.ExecuteRequest{Code: l.upTo(64<<10, 3000)}}
	for i := range 100 {
		shown.Files = append(shown.Files, farm.InputFile{Path: fmt.Sprint(i, l.upTo(1000, 5))})
		a.Packages = append(a.Packages, fmt.Sprint(i, l.upTo(limits.MaxPackageBytes, 200)))
	}
	a.Job.Redacted = &shown
	a.Idempotency = &store.Idempotency{Key: a.Job.ID, Fingerprint: "f"}
	ref := a.Job.Ref()
	l.must(l.s.Accept(ctx, a))
	l.measure("accepted", ref.ID)
	claim, err := l.s.Claim(ctx, ref, "w")
	l.must(nil, err)
	l.must(nil, l.s.LoadRequest(ctx, claim))

	left := (2*limits.MaxStreamEvents + 16<<20) / 8
	if l.limit && (kind == farm.KindExecute || kind == farm.KindCommand) { // events that each nearly fill the window make the most segments
		left *= 8
	}
	seq := 3
	for ; left > 0; seq++ {
		size := 31 << 10
		if !l.limit {
			size = l.random.IntN(100_000)
		}
		left -= size + 100
		l.must(nil, l.s.AppendEvents(ctx, ref, 1, []farm.Event{{ID: fmt.Sprintf("%d-1", seq), Name: farm.EventStdout, Text: strings.Repeat("x", size)}}))
	}
	for l.edge && l.rdb.Exists(ctx, "sf:{acme}:ev:"+ref.ID).Val() == 0 { // the window is full
		l.must(nil, l.s.AppendEvents(ctx, ref, 1, []farm.Event{{ID: fmt.Sprintf("%d-1", seq), Name: farm.EventStdout, Text: strings.Repeat("x", 32<<10-100)}}))
		seq++
	}
	l.must(nil, l.s.Checkpoint(ctx, ref, 1, []byte(strings.Repeat("x", 1000))))
	var artifacts []farm.Artifact
	files := 3000
	if l.edge {
		files = 170
	}
	for i := range files {
		p := fmt.Sprint("dir/file", i, ".txt")
		artifacts = append(artifacts, farm.Artifact{
			ID: farm.ArtifactID(ref.ID, p), Tenant: ref.Tenant, SandboxID: a.Job.SandboxID, JobID: ref.ID, Name: fmt.Sprint("file", i, ".txt"), Path: p,
			Size: 1, SHA256: strings.Repeat("0", 64), CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour), Key: "artifacts/" + p,
		})
	}
	l.must(nil, l.s.AddArtifacts(ctx, 0, artifacts))
	l.measure("running", ref.ID)
	result := &farm.Result{Execute: &farm.ExecuteResult{Stdout: l.upTo(1<<20, store.InlineBytes-150), Stderr: l.upTo(1<<20, 0)}}
	if !l.edge {
		result.Artifacts = artifacts
	}
	l.must(l.s.Finish(ctx, store.Finish{
		Ref: ref, Attempt: 1, State: farm.JobFailed, Result: result, Error: &farm.JobError{Code: farm.CodeInternal, Message: l.upTo(1<<20, 4000)},
	}))
	l.measure("finished", ref.ID)
	job, err := l.s.Job(ctx, ref)
	l.must(nil, err)
	if job.Result == nil || job.Result.Execute.Stdout != result.Execute.Stdout || job.Redacted == nil {
		l.Error("the finished job has lost something")
	}
}

// measure checks the memory of a job's keys, and the names of all keys.
func (l *life) measure(when, id string) {
	l.Helper()
	total := int64(0)
	var sizes []string
	scan := l.rdb.Scan(l.Context(), 0, "*", 1000).Iterator()
	for scan.Next(l.Context()) {
		name := scan.Val()
		if !knownKeys.MatchString(name) {
			l.Errorf("%s: unknown key %s", when, name)
		}
		n, err := l.rdb.MemoryUsage(l.Context(), name, 0).Result()
		testbed.Must(l, err)
		if strings.Contains(name, id) {
			total += n
			sizes = append(sizes, fmt.Sprintf("%s %d", name, n))
		}
		if n > redisBudget {
			l.Errorf("%s: %s has %d bytes", when, name, n)
		}
	}
	testbed.Must(l, scan.Err())
	if total > redisBudget || total == 0 {
		l.Errorf("%s: the job has %d bytes in Redis, want at most %d: %s", when, total, redisBudget, strings.Join(sizes, ", "))
	}
	l.Logf("%s: %d bytes: %s", when, total, strings.Join(sizes, ", "))
}

func (l *life) must(_ any, err error) {
	l.Helper()
	testbed.Must(l, err)
}

// BenchmarkAccept accepts creates, and executions of one sandbox. Beside the time of a call it reports what the script costs Redis
// itself.
func BenchmarkAccept(b *testing.B) {
	for _, c := range []struct {
		name string
		next func(sandbox string) store.Accept
	}{
		{"Create", func(string) store.Accept { return storetest.Create() }},
		{"Execute", storetest.Execute},
	} {
		b.Run(c.name, func(b *testing.B) {
			rdb := testbed.NewRedis(b).Client(b)
			limits := farm.DefaultLimits()
			limits.MaxWaiting, limits.MaxQueued, limits.MaxQueueDepth = 1<<30, 1<<30, 1<<30
			s := store.New(rdb, storetest.NoTasks, store.Options{Limits: limits})
			defer s.Close()
			box := storetest.Create()
			_, err := s.Accept(b.Context(), box)
			testbed.Must(b, err)
			testbed.Must(b, rdb.ConfigResetStat(b.Context()).Err())
			b.ReportAllocs()
			for b.Loop() {
				_, err := s.Accept(b.Context(), c.next(box.Sandbox.ID))
				testbed.Must(b, err)
			}
			b.ReportMetric(usecPerScript(b, rdb), "redis-µs/op")
		})
	}
}

// usecPerScript is how long Redis took for a call of a script, as it counts itself.
func usecPerScript(b *testing.B, rdb redis.UniversalClient) float64 {
	b.Helper()
	info, err := rdb.InfoMap(b.Context(), "commandstats").Result()
	testbed.Must(b, err)
	_, rest, _ := strings.Cut(info["Commandstats"]["cmdstat_evalsha"], "usec_per_call=")
	text, _, _ := strings.Cut(rest, ",")
	usec, err := strconv.ParseFloat(text, 64)
	testbed.Must(b, err)
	return usec
}

// TestUnfinishedJobsOfOneTenantAreBounded: at the limit one tenant is refused, the other is not, and what ends something always goes.
func TestUnfinishedJobsOfOneTenantAreBounded(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	ctx, limit := t.Context(), float64(100<<20)
	unfinished := func() int64 {
		memory, err := w.s.JobMemory(ctx, "acme")
		w.must(nil, err)
		return memory[0].Unfinished
	}
	job := w.job("acme")
	size := -unfinished()
	w.must(w.s.Accept(ctx, job))
	size += unfinished() // of each such job
	w.must(nil, w.rdb.ConfigSet(ctx, "maxmemory", strconv.Itoa(int(limit))).Err())
	bound := int64(0.35 * limit)
	const lists int64 = 1000 // of artifacts, which count as well
	for _, c := range []struct {
		used    int64
		refused bool
	}{{bound - size - 1, false}, {bound - size, false}, {bound - size + 1, true}, {bound + 1, true}} {
		w.must(nil, w.rdb.HSet(ctx, "sf:{acme}:mem", "unfinished", c.used-lists).Err())
		w.must(nil, w.rdb.HSet(ctx, "sf:{acme}:stored", "manifests", lists).Err())
		s := store.New(w.rdb, storetest.NoTasks, store.Options{}) // it has not read the memory limit before
		_, err := s.Accept(ctx, w.job("acme"))
		if (farm.CodeOf(err) == farm.CodeExhausted) != c.refused || (err != nil) != c.refused {
			t.Errorf("with %d of %d bytes Accept = %v", c.used, bound, err)
		}
		testbed.Check(t, !c.refused || strings.Contains(fmt.Sprint(err), "max_unfinished"), "the refusal %q does not name the limit", err)
		w.must(s.Accept(ctx, w.job("neighbour")))
	}
	for _, c := range []struct {
		used    int64
		refused bool
	}{{bound - 21, false}, {bound - 20, false}, {bound - 19, true}} {
		box := farm.Ref{Tenant: "acme", ID: w.boxes["acme"]}
		w.must(w.s.UpdateSandbox(ctx, box, store.SandboxPatch{Labels: &map[string]string{"k": ""}}))
		w.must(nil, w.rdb.HSet(ctx, "sf:{acme}:mem", "unfinished", c.used-lists).Err())
		s := store.New(w.rdb, storetest.NoTasks, store.Options{})
		_, err := s.UpdateSandbox(ctx, box, store.SandboxPatch{Labels: &map[string]string{"k": strings.Repeat("v", 20)}})
		if (farm.CodeOf(err) == farm.CodeExhausted) != c.refused || (err != nil) != c.refused {
			t.Errorf("with %d of %d bytes UpdateSandbox = %v", c.used, bound, err)
		}
		w.must(w.s.UpdateSandbox(ctx, box, store.SandboxPatch{Labels: &map[string]string{}}))
	}
	end := storetest.CloseJob(w.boxes["acme"])
	w.must(w.s.Accept(ctx, end))
}

// TestLongListsOfArtifactsAreBounded: jobs that were accepted made Redis full by their lists of artifacts, which stay when the jobs are forgotten; then the
// farm stopped. A list that would take more than the tenant may have is a document, unless it is short.
func TestLongListsOfArtifactsAreBounded(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	ctx, limit, documents := t.Context(), float64(100<<20), storetest.NewDocuments()
	const extra, short, long = 1024, 4 << 10, 20_000 // MANIFEST_EXTRA, shortManifest
	// list records an artifact while the tenant has so much, and returns the length of the list in Redis; 0: it is a document.
	list := func(used int64, path int) int64 {
		a := w.job("acme")
		w.must(w.s.Accept(ctx, a))
		w.must(w.s.Claim(ctx, a.Job.Ref(), "w"))
		w.must(nil, w.rdb.HSet(ctx, "sf:{acme}:mem", "unfinished", used-1000).Err())
		w.must(nil, w.rdb.HSet(ctx, "sf:{acme}:stored", "manifests", 1000).Err())
		s := store.New(w.rdb, storetest.NoTasks, store.Options{Documents: documents}) // it has not read the memory limit before
		at := time.UnixMicro(1_800_000_000_123_456)                                   // as long in each list
		w.must(nil, s.AddArtifacts(ctx, 1, []farm.Artifact{{
			ID: farm.ArtifactID(a.Job.ID, "a"), Tenant: "acme", JobID: a.Job.ID, SandboxID: w.boxes["acme"], Path: strings.Repeat("p", path), Name: "n", Size: 1,
			CreatedAt: at, ExpiresAt: at,
		}}))
		w.must(s.Finish(ctx, store.Finish{Ref: a.Job.Ref(), Attempt: 1, State: farm.JobCompleted}))
		w.must(nil, w.rdb.HSet(ctx, "sf:{acme}:mem", "unfinished", 0).Err())
		w.must(nil, w.rdb.HSet(ctx, "sf:{acme}:stored", "manifests", 0).Err())
		found, _, err := s.Artifacts(ctx, "acme", store.ArtifactFilter{JobID: a.Job.ID}, store.Page{Limit: 2})
		testbed.Check(t, err == nil && len(found) == 1 && len(found[0].Path) == path, "the list has %d artifacts, %v", len(found), err)
		doc, err := w.rdb.HGet(ctx, "sf:{acme}:mf:"+a.Job.ID, "doc").Result()
		w.must(nil, err)
		if strings.HasPrefix(doc, "@") {
			return 0
		}
		return int64(len(doc))
	}
	size := list(0, long)
	testbed.Require(t, size > long, "without a bound %d bytes are in Redis", size)
	w.must(nil, w.rdb.ConfigSet(ctx, "maxmemory", strconv.Itoa(int(limit))).Err())
	bound := int64(0.35 * limit)
	room, beside := bound-size-extra, int(size)-long // what a list has beside its path
	for _, c := range []struct {
		used   int64
		path   int
		inline bool
	}{
		{room - 1, long, true},
		{room, long, true},
		{room + 1, long, false},
		{2 * bound, short - beside - 1, true},
		{2 * bound, short - beside, true},
		{2 * bound, short - beside + 1, false},
	} {
		got := list(c.used, c.path)
		testbed.Check(t, (got > 0) == c.inline, "with %d of %d bytes, a list of %d has %d in Redis", c.used, bound, beside+c.path, got)
	}
}

// TestUnfinishedJobsOfTwoTenantsLeaveRoom: two tenants who took all they could filled Redis to the share above which nobody's work is accepted. What a
// tenant may have falls before.
func TestUnfinishedJobsOfTwoTenantsLeaveRoom(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	ctx := t.Context()
	job, quiet := w.job("acme"), w.job("quiet")
	// Beside it buffers of connections are nothing. A SET would leave a buffer of that size for the next one, until Redis shrinks it.
	w.must(nil, w.rdb.SetRange(ctx, "filler", 64<<20-1, "x").Err())
	for _, c := range []struct {
		full, share float64 // of Redis
	}{{40, 0.35}, {50, 0.35}, {60, 0.175}, {68, 0.035}} {
		limit := w.fill(c.full)
		for _, more := range []float64{-0.02, 0.02} {
			w.must(nil, w.rdb.HSet(ctx, "sf:{acme}:mem", "unfinished", int((c.share+more)*limit)).Err())
			s := store.New(w.rdb, storetest.NoTasks, store.Options{}) // it has not read the memory before
			job.Job.ID = farm.NewID(farm.JobPrefix)
			if _, err := s.Accept(ctx, job); (farm.CodeOf(err) == farm.CodeExhausted) != (more > 0) || (err != nil) != (more > 0) {
				t.Errorf("at %v %%, a tenant with %v %%: Accept = %v", c.full, (c.share+more)*100, err)
			}
			quiet.Job.ID = farm.NewID(farm.JobPrefix)
			w.must(s.Accept(ctx, quiet))
		}
	}
}

// TestJobMemoryIsAboutRight compares what is counted for finished jobs, and for ended sandboxes with their jobs, with what Redis uses for them.
func TestJobMemoryIsAboutRight(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	w.finished("acme", "", 1)
	for _, size := range []int{0, 1000, 30_000} {
		const jobs = 100
		before, used := w.memory("acme"), w.used()
		for range jobs {
			a := w.job("acme")
			a.Request.Execute.Code = strings.Repeat("y", 10)
			w.must(w.s.Accept(t.Context(), a))
			w.must(w.s.Claim(t.Context(), a.Job.Ref(), "w"))
			w.must(w.s.Finish(t.Context(), store.Finish{
				Ref: a.Job.Ref(), Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: strings.Repeat("x", size)}},
				Events: []farm.Event{{ID: "5-1", Name: farm.EventStdout, Text: strings.Repeat("x", min(size, 4000))}},
			}))
		}
		counted, real := (w.memory("acme")-before)/jobs, int64(w.used()-used)/jobs
		t.Logf("%d bytes of output: %d bytes are counted for a job, Redis uses %d", size, counted, real)
		if counted < real*2/3 || counted > real*3/2 {
			t.Errorf("%d bytes of output: %d bytes are counted for a job, Redis uses %d", size, counted, real)
		}
		before, used = w.memory("acme"), w.used()
		w.closed("acme", jobs, size)
		counted, real = (w.memory("acme")-before)/jobs, int64(w.used()-used)/jobs
		t.Logf("%d bytes of labels: %d bytes are counted for a sandbox, Redis uses %d", size, counted, real)
		if counted < real*2/3 || counted > real*3/2 {
			t.Errorf("%d bytes of labels: %d bytes are counted for a sandbox, Redis uses %d", size, counted, real)
		}
	}
}

func (w *memoryWorld) memory(tenant string) int64 {
	w.Helper()
	memory, err := w.s.JobMemory(w.Context(), tenant)
	w.must(nil, err)
	return memory[0].Finished
}
