//go:build integration

package store_test

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

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
