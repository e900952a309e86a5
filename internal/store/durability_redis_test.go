//go:build integration

package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

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
		if _, err := s.Accept(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		for _, ref := range []farm.Ref{alone.Job.Ref(), a.Job.Ref()} {
			if job, err := copied.Job(t.Context(), ref); err != nil || job.State != farm.JobQueued {
				t.Fatalf("on the replica: %+v, %v", job, err)
			}
		}
	}
	replica.Kill()
	if _, err := s.Accept(t.Context(), storetest.Create()); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("Accept after the replica died: %v", err)
	}
}

// A Redis that is too old, or keeps no file, is refused at the start. Newer ones answer.
func TestDurabilityIsCheckedAtTheStart(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"no", "yes"} {
		rdb := testbed.NewRedis(t, "--appendonly", file).Client(t)
		s := store.New(rdb, storetest.NoTasks, store.Options{Durability: store.DurabilityAOF})
		known, err := rdb.Do(t.Context(), "command", "info", "waitaof").Slice()
		if err != nil || len(known) != 1 {
			t.Fatalf("COMMAND INFO: %v, %v", known, err)
		}
		err = s.CheckDurability(t.Context())
		switch {
		case known[0] == nil:
			if err == nil || !strings.Contains(err.Error(), "no WAITAOF: use Redis 7.2") {
				t.Errorf("an old Redis: %v", err)
			}
			if _, err := s.Accept(t.Context(), storetest.Create()); err == nil {
				t.Error("an old Redis confirmed a job")
			}
		case file == "no":
			if err == nil || !strings.Contains(err.Error(), "set appendonly yes") {
				t.Errorf("a Redis without a file: %v", err)
			}
		default:
			if err != nil {
				t.Errorf("a new Redis: %v", err)
			}
			if _, err := s.Accept(t.Context(), storetest.Create()); err != nil {
				t.Errorf("Accept: %v", err)
			}
		}
	}
	for _, d := range []store.Durability{"", store.DurabilityEverySec} {
		if err := store.New(testbed.NewRedis(t).Client(t), storetest.NoTasks, store.Options{Durability: d}).CheckDurability(t.Context()); err != nil {
			t.Errorf("%q: %v", d, err)
		}
	}
}
