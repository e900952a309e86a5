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
