//go:build integration

package store_test

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestOnRedis(t *testing.T) {
	t.Parallel()
	server := testbed.NewRedis(t)
	storetest.Run(t, func(t *testing.T) redis.UniversalClient {
		t.Helper()
		return server.Client(t)
	})
}

func TestPersistence(t *testing.T) {
	t.Parallel()
	s := store.New(testbed.NewRedis(t, "--appendonly", "yes", "--maxmemory-policy", "noeviction").Client(t), storetest.NoTasks, store.Options{})
	aof, policy, err := s.Persistence(t.Context())
	testbed.Check(t, err == nil && aof && policy == "noeviction", "Persistence = %v, %q, %v", aof, policy, err)
}

// TestHeartbeatExpires waits for Redis itself to forget a worker, and lets another one take its job over.
func TestHeartbeatExpires(t *testing.T) {
	t.Parallel()
	s := store.New(testbed.NewRedis(t).Client(t), storetest.NoTasks, store.Options{})
	ctx := t.Context()
	testbed.Must(t, s.Heartbeat(ctx, farm.Worker{ID: "w1"}))
	a := storetest.Create()
	_, err := s.Accept(ctx, a)
	testbed.Must(t, err)
	_, err = s.Claim(ctx, a.Job.Ref(), "w1")
	testbed.Must(t, err)
	start := time.Now()
	for {
		alive, err := s.Alive(ctx, "w1")
		testbed.Must(t, err)
		if !alive {
			break
		}
		testbed.Require(t, time.Since(start) <= 2*store.HeartbeatTTL, "the worker is alive without heartbeats")
		time.Sleep(50 * time.Millisecond)
	}
	c, err := s.Claim(ctx, a.Job.Ref(), "w2")
	testbed.Check(t, err == nil && c.Job.Attempt == 2, "takeover = %+v, %v", c, err)
}

// TestManyFinishedJobs runs jobs through an empty Redis, and again beside many finished jobs: each takes exactly as many commands, scripts
// included, and the lists that scripts walk are empty afterwards.
func TestManyFinishedJobs(t *testing.T) {
	t.Parallel()
	rdb := testbed.NewRedis(t).Client(t)
	s := store.New(rdb, storetest.NoTasks, store.Options{})
	ctx := t.Context()
	end := func(a store.Accept) {
		t.Helper()
		_, err := s.Accept(ctx, a)
		testbed.Must(t, err)
		_, err = s.Claim(ctx, a.Job.Ref(), "w")
		testbed.Must(t, err)
		_, err = s.Finish(ctx, store.Finish{Ref: a.Job.Ref(), Attempt: 1, State: farm.JobCompleted})
		testbed.Must(t, err)
	}
	box := storetest.Create()
	end(box)
	const few, many = 10, 3000
	commands := func(jobs int) map[string]int {
		t.Helper()
		testbed.Must(t, rdb.ConfigResetStat(ctx).Err())
		for range jobs {
			end(storetest.Execute(box.Sandbox.ID))
		}
		return commandCalls(t, rdb)
	}
	commands(few) // the first entries of an index are trimmed differently
	empty := commands(few)
	commands(many)
	diff := cmp.Diff(empty, commands(few))
	testbed.Check(t, diff == "" && len(empty) != 0, "commands for %d jobs (-without +beside %d finished ones):\n%s", few, many, diff)
	n := rdb.LLen(ctx, "sf:{acme}:line:"+box.Sandbox.ID).Val() + rdb.ZCard(ctx, "sf:{acme}:open").Val() + rdb.ZCard(ctx, "sf:{acme}:osj:"+box.Sandbox.ID).Val()
	testbed.Check(t, n == 0, "finished jobs left %d entries in the FIFO and the indexes of unfinished jobs", n)
}

// commandCalls counts the commands that Redis has run since its statistics were reset, those of scripts included. What a Store sends once a
// second or a minute does not count.
func commandCalls(t *testing.T, rdb redis.UniversalClient) map[string]int {
	t.Helper()
	info, err := rdb.InfoMap(t.Context(), "commandstats").Result()
	testbed.Must(t, err)
	calls := map[string]int{}
	for name, stat := range info["Commandstats"] {
		name = strings.TrimPrefix(name, "cmdstat_")
		text, _, _ := strings.Cut(strings.TrimPrefix(stat, "calls="), ",")
		n, err := strconv.Atoi(text)
		testbed.Require(t, err == nil, "statistics of %s: %q", name, stat)
		if name != "info" && name != "sadd" && !strings.HasPrefix(name, "config") {
			calls[name] = n
		}
	}
	return calls
}

// TestRefusesWhenRedisFillsUp moves Redis's memory limit around what it uses: just above 70 % no new jobs are accepted.
func TestRefusesWhenRedisFillsUp(t *testing.T) {
	t.Parallel()
	rdb := testbed.NewRedis(t, "--maxmemory-policy", "noeviction").Client(t)
	ctx := t.Context()
	first := store.New(rdb, storetest.NoTasks, store.Options{})
	a := storetest.Create()
	_, err := first.Accept(ctx, a)
	testbed.Must(t, err)
	// Much more than the test itself uses. Redis makes it itself: a value of this size that is sent leaves a buffer of the same size with its
	// connection, which counts as used until Redis shrinks it a moment later.
	testbed.Must(t, rdb.SetRange(ctx, "ballast", 8<<20-1, "x").Err())
	for _, c := range []struct {
		percent int
		refused bool
	}{{68, false}, {72, true}, {68, false}} {
		info, err := rdb.InfoMap(ctx, "memory").Result()
		testbed.Must(t, err)
		used, err := strconv.Atoi(info["Memory"]["used_memory"])
		testbed.Must(t, err)
		testbed.Must(t, rdb.ConfigSet(ctx, "maxmemory", strconv.Itoa(used*100/c.percent)).Err())
		s := store.New(rdb, storetest.NoTasks, store.Options{}) // a new store has not cached the memory use
		if _, err := s.Accept(ctx, storetest.Create()); (farm.CodeOf(err) == farm.CodeExhausted) != c.refused || (err != nil) != c.refused {
			t.Errorf("at %d %% of the memory limit Accept = %v", c.percent, err)
		}
		_, err = s.Accept(ctx, storetest.CloseJob(a.Sandbox.ID))
		testbed.Check(t, err == nil, "at %d %% of the memory limit a close was refused: %v", c.percent, err)
	}
	key, err := first.LinkKey(ctx)
	testbed.Must(t, err)
	testbed.Must(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	got, err := first.LinkKey(ctx)
	testbed.Check(t, err == nil && bytes.Equal(got, key), "the key of links where Redis is full: %x, %v", got, err)
}

// shebang makes Redis refuse a script on a cluster when it touches keys of several slots, declared or not. Without it a script may touch all slots of its
// node, which are all slots in a cluster of one.
const shebang = "#!lua\n"

// strict is a hook of a Redis client that calls every script with the shebang.
type strict struct {
	hashes sync.Map // of scripts with the shebang, by those without
}

func (s *strict) hook(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
	for _, cmd := range cmds {
		s.rewrite(cmd)
	}
	return next(cmds...)
}

func (s *strict) rewrite(cmd redis.Cmder) {
	args := cmd.Args()
	switch strings.ToLower(cmd.Name()) {
	case "eval":
		text := args[1].(string)
		args[1] = shebang + text
		s.hashes.Store(hash(text), hash(shebang+text))
	case "evalsha":
		if with, ok := s.hashes.Load(args[1]); ok {
			args[1] = with
		}
	}
}

func hash(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}

// With a real replica: what was accepted is there once the call returns, and without the replica the call fails.
func TestAcceptedJobIsOnTheReplica(t *testing.T) {
	t.Parallel()
	port := testbed.Port(t)
	primary := testbed.NewRedis(t, "--port", port)
	s := store.New(primary.Client(t), storetest.NoTasks, store.Options{Durability: store.DurabilityReplica})
	if err := s.CheckDurability(t.Context()); err != nil { // it only warns: a replica may come later
		t.Errorf("CheckDurability without a replica: %v", err)
	}
	alone := storetest.Create()
	if _, err := s.Accept(t.Context(), alone); farm.CodeOf(err) != farm.CodeUnavailable || !strings.Contains(farm.MessageOf(err), "did not confirm") {
		t.Errorf("Accept without a replica: %v", err)
	}
	replica := testbed.NewRedis(t, "--replicaof", "127.0.0.1", port)
	copied := store.New(replica.Client(t), storetest.NoTasks, store.Options{})
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := s.Accept(t.Context(), alone); err == nil { // the repeated call waits, although it writes no record
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("Accept with a replica: %v", err)
		}
	}
	for range 20 {
		a := storetest.Create()
		_, err := s.Accept(t.Context(), a)
		testbed.Must(t, err)
		for _, ref := range []farm.Ref{alone.Job.Ref(), a.Job.Ref()} {
			job, err := copied.Job(t.Context(), ref)
			testbed.Require(t, err == nil && job.State == farm.JobQueued, "on the replica: %+v, %v", job, err)
		}
	}
	replica.Kill()
	_, err := s.Accept(t.Context(), storetest.Create())
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "Accept after the replica died: %v", err)
}

// A Redis that is too old, or keeps no file, is refused at the start. Newer ones answer.
func TestDurabilityIsCheckedAtTheStart(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"no", "yes"} {
		rdb := testbed.NewRedis(t, "--appendonly", file).Client(t)
		s := store.New(rdb, storetest.NoTasks, store.Options{Durability: store.DurabilityAOF})
		known, err := rdb.Do(t.Context(), "command", "info", "waitaof").Slice()
		testbed.Require(t, err == nil && len(known) == 1, "COMMAND INFO: %v, %v", known, err)
		err = s.CheckDurability(t.Context())
		switch {
		case known[0] == nil:
			testbed.Check(t, err != nil && strings.Contains(err.Error(), "no WAITAOF: use Redis 7.2"), "an old Redis: %v", err)
			_, err := s.Accept(t.Context(), storetest.Create())
			testbed.Check(t, err != nil, "an old Redis confirmed a job")
		case file == "no":
			testbed.Check(t, err != nil && strings.Contains(err.Error(), "set appendonly yes"), "a Redis without a file: %v", err)
		default:
			testbed.Check(t, err == nil, "a new Redis: %v", err)
			_, err := s.Accept(t.Context(), storetest.Create())
			testbed.Check(t, err == nil, "Accept: %v", err)
		}
	}
	for _, d := range []store.Durability{"", store.DurabilityEverySec} {
		err := store.New(testbed.NewRedis(t).Client(t), storetest.NoTasks, store.Options{Durability: d}).CheckDurability(t.Context())
		testbed.Check(t, err == nil, "%q: %v", d, err)
	}
}

const timeout = 20 * time.Second

// TestSubscriptionsOutliveACut cuts the connections of a watch and of a worker's cancels, and changes records while they are
// disconnected: both are signalled to read again, and receive later messages.
func TestSubscriptionsOutliveACut(t *testing.T) {
	t.Parallel()
	server := testbed.NewRedis(t)
	proxy := testbed.NewProxy(t, server)
	rdb := proxy.Dial()
	remote, local := store.New(rdb, storetest.NoTasks, store.Options{}), store.New(server.Client(t), storetest.NoTasks, store.Options{})
	t.Cleanup(func() { _, _ = remote.Close(), rdb.Close() })
	ctx, a := t.Context(), storetest.Create()
	_, err := local.Accept(ctx, a)
	testbed.Must(t, err)
	w, err := remote.Watch(ctx, a.Job.ID)
	testbed.Must(t, err)
	defer w.Close()
	cancels, err := remote.Cancels(ctx)
	testbed.Must(t, err)
	defer cancels.Close()

	proxy.Cut()
	_, err = local.Claim(ctx, a.Job.Ref(), "w")
	testbed.Must(t, err) // no subscriber receives this
	awake(t, w)
	select {
	case ref := <-cancels.C():
		testbed.Check(t, ref == (farm.Ref{}), "after a cut the worker receives %+v, want the zero Ref", ref)
	case <-time.After(timeout):
		t.Error("the worker is not signalled to read again")
	}
	_, _, err = local.Cancel(ctx, a.Job.Ref(), nil)
	testbed.Must(t, err)
	select {
	case ref := <-cancels.C():
		testbed.Check(t, ref == a.Job.Ref(), "the worker receives %+v", ref)
	case <-time.After(timeout):
		t.Error("the worker does not receive a cancel after a cut")
	}
	testbed.Must(t, local.AppendEvents(ctx, a.Job.Ref(), 0, []farm.Event{{Name: farm.EventStdout, Text: "x"}}))
	awake(t, w)
}

func awake(t *testing.T, w *store.Watch) {
	t.Helper()
	select {
	case <-w.C():
	case <-time.After(timeout):
		t.Fatal("the watch does not fire")
	}
}

// TestOnCluster runs the suite on a Redis Cluster of one node, with strict scripts: Redis refuses those that touch keys of several slots.
func TestOnCluster(t *testing.T) {
	t.Parallel()
	addr := startCluster(t)
	storetest.Run(t, func(t *testing.T) redis.UniversalClient {
		t.Helper()
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})
		rdb.AddHook(testbed.Hook((&strict{}).hook))
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	})
}

func startCluster(t *testing.T) string {
	t.Helper()
	port, bus := testbed.Port(t), testbed.Port(t)
	cmd := exec.CommandContext(t.Context(), "redis-server", "--port", port, "--cluster-enabled", "yes", "--cluster-port", bus,
		"--dir", t.TempDir(), "--save", "", "--loglevel", "warning", "--bind", "127.0.0.1")
	cmd.Stderr = os.Stderr
	testbed.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	addr := "127.0.0.1:" + port
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	testbed.Until(t, "the cluster answers", func() bool { return rdb.Ping(t.Context()).Err() == nil })
	testbed.Must(t, rdb.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	testbed.Until(t, "the cluster comes up", func() bool { return rdb.Set(t.Context(), "x", 1, 0).Err() == nil })
	return addr
}

// subscriptions returns how many subscriptions Redis has been sent.
func subscriptions(t *testing.T, server *testbed.Redis) (calls string) {
	t.Helper()
	text, err := server.Client(t).Info(t.Context(), "commandstats").Result()
	testbed.Must(t, err)
	for line := range strings.Lines(text) {
		if name, stats, _ := strings.Cut(line, ":"); strings.HasSuffix(name, "subscribe") {
			count, _, _ := strings.Cut(stats, ",")
			calls += name + " " + count + "\n"
		}
	}
	return calls
}

// A process that waits for the jobs that it names itself sends one subscription, however many they are.
func TestWatchesOfOwnJobsShareOneSubscription(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"sf:", `odd[a-z]*?\^:`} {
		server := testbed.NewRedis(t)
		local := store.New(server.Client(t), storetest.NoTasks, store.Options{Prefix: prefix})
		remote := store.New(server.Client(t), storetest.NoTasks, store.Options{Prefix: prefix})
		t.Cleanup(func() { _, _ = local.Close(), remote.Close() })
		before := ""
		for i := range 20 {
			a := storetest.Create()
			a.Job.ID = remote.NewJobID()
			testbed.Require(t, farm.ValidID(farm.JobPrefix, a.Job.ID), "id %q", a.Job.ID)
			w, err := remote.Watch(t.Context(), a.Job.ID)
			testbed.Must(t, err)
			if i == 0 {
				before = subscriptions(t, server)
			}
			_, err = local.Accept(t.Context(), a)
			testbed.Must(t, err)
			_, err = local.Claim(t.Context(), a.Job.Ref(), "w")
			testbed.Must(t, err)
			awake(t, w)
			w.Close()
		}
		after := subscriptions(t, server)
		testbed.Check(t, after == before, "prefix %q: 19 watches more took\n%sand before\n%s", prefix, after, before)
		theirs := storetest.Create() // the job of another process
		theirs.Job.ID = local.NewJobID()
		w, err := remote.Watch(t.Context(), theirs.Job.ID)
		testbed.Must(t, err)
		defer w.Close()
		_, err = local.Accept(t.Context(), theirs)
		testbed.Must(t, err)
		awake(t, w)
	}
}

// Watches of own jobs fire after a cut, also one that began while the connection was down: the change may have been missed.
func TestWatchesOfOwnJobsFireAfterACut(t *testing.T) {
	t.Parallel()
	server := testbed.NewRedis(t)
	local := store.New(server.Client(t), storetest.NoTasks, store.Options{})
	proxy := testbed.NewProxy(t, server)
	rdb := proxy.Dial()
	remote := store.New(rdb, storetest.NoTasks, store.Options{})
	t.Cleanup(func() { _, _, _ = local.Close(), remote.Close(), rdb.Close() })
	watch := func() (*store.Watch, farm.Ref) {
		a := storetest.Create()
		a.Job.ID = remote.NewJobID()
		_, err := local.Accept(t.Context(), a)
		testbed.Must(t, err)
		w, err := remote.Watch(t.Context(), a.Job.ID)
		testbed.Must(t, err)
		t.Cleanup(w.Close)
		return w, a.Job.Ref()
	}
	first, _ := watch()
	proxy.Refuse(true)
	proxy.Cut()
	second, _ := watch()
	proxy.Refuse(false)
	awake(t, first)
	awake(t, second)
	third, ref := watch()
	_, err := local.Claim(t.Context(), ref, "w")
	testbed.Must(t, err)
	awake(t, third)
}
