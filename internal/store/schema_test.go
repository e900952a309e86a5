//go:build integration

package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// schemaKey has the version.
const schemaKey = "sf:schema"

// oldRecords fills a Redis with the records of the release before versions.
func oldRecords(t *testing.T) (rdb redis.UniversalClient, dump storetest.Dump) {
	t.Helper()
	dump, err := storetest.LoadDump("testdata/schema0.json")
	testbed.Must(t, err)
	rdb = testbed.NewRedis(t).Client(t)
	testbed.Must(t, dump.Restore(t.Context(), rdb))
	return rdb, dump
}

func storeAt(t *testing.T, rdb redis.UniversalClient) *store.Store {
	t.Helper()
	s := store.New(rdb, storetest.NoTasks, store.Options{Now: func() time.Time { return formatNow.Add(time.Hour) }})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// contents reads all keys, without times to live and what the migration keeps for itself.
func contents(t *testing.T, rdb redis.UniversalClient) storetest.Dump {
	t.Helper()
	dump, err := storetest.ReadDump(t.Context(), rdb, "sf:")
	testbed.Must(t, err)
	for key, v := range dump {
		v.TTL = 0
		dump[key] = v
		if strings.HasPrefix(key, "sf:lock:") || strings.HasPrefix(key, "sf:worker:") {
			delete(dump, key)
		}
	}
	return dump
}

// TestMigrateKeepsWhatOlderProgramsRead: a migration adds keys and fields, and changes none that is there, but for the notes about void
// containers.
func TestMigrateKeepsWhatOlderProgramsRead(t *testing.T) {
	t.Parallel()
	rdb, _ := oldRecords(t)
	before := contents(t, rdb)
	s := storeAt(t, rdb)
	from, err := s.Migrate(t.Context())
	testbed.Require(t, err == nil && from == 0, "Migrate = from %d, %v", from, err)
	if version, err := s.StoredSchema(t.Context()); err != nil || version != store.Schema() {
		t.Errorf("StoredSchema = %d, %v; want %d", version, err, store.Schema())
	}
	after := contents(t, rdb)
	for key, v := range before {
		now := after[key]
		delete(v.Hash, "void")
		for name := range now.Hash {
			if _, old := v.Hash[name]; !old {
				delete(now.Hash, name)
			}
		}
		testbed.Diff(t, fmt.Sprintf("%s was changed (-before +after)", key), v, now)
	}
	from, err = s.Migrate(t.Context())
	testbed.Check(t, err == nil && from == store.Schema(), "a second Migrate = from %d, %v", from, err)
}

// TestMigratedSandboxesAreIndexed: the workers of a node find their sandboxes after the migration, and only those.
func TestMigratedSandboxesAreIndexed(t *testing.T) {
	t.Parallel()
	rdb, _ := oldRecords(t)
	s := storeAt(t, rdb)
	_, err := s.Migrate(t.Context())
	testbed.Must(t, err)
	for node, want := range map[string][]string{
		"n1": {"sbx_busy", "sbx_closing", "sbx_offered", "sbx_starting"}, "n2": {"sbx_callback", "sbx_moved", "sbx_other_tenant"},
	} {
		boxes, err := s.OpenOnNode(t.Context(), node)
		testbed.Must(t, err)
		var got []string
		for _, box := range boxes {
			got = append(got, box.ID)
		}
		slices.Sort(got)
		testbed.Diff(t, fmt.Sprintf("sandboxes of node %s", node), want, got)
	}
}

// TestMigratedSandboxesHaveGenerations: what left a node in the release before is of the second generation, all else of the first.
func TestMigratedSandboxesHaveGenerations(t *testing.T) {
	t.Parallel()
	rdb, _ := oldRecords(t)
	s := storeAt(t, rdb)
	_, err := s.Migrate(t.Context())
	testbed.Must(t, err)
	boxes, err := s.OpenSandboxes(t.Context(), storetest.Tenant)
	if err != nil || len(boxes) == 0 {
		t.Fatal(len(boxes), err)
	}
	for _, box := range boxes {
		want := 1
		if box.ID == "sbx_moved" || box.ID == "sbx_unassigned" {
			want = 2
		}
		testbed.Diff(t, fmt.Sprintf("%s has generation", box.ID), want, box.Generation)
	}
}

// TestMigrationIsContinued ends the process that migrates at each of its commands in turn. The next one completes its work.
func TestMigrationIsContinued(t *testing.T) {
	t.Parallel()
	rdb, dump := oldRecords(t)
	_, err := storeAt(t, rdb).Migrate(t.Context())
	testbed.Must(t, err)
	want := contents(t, rdb)
	server := testbed.NewRedis(t)
	rdb = server.Client(t)
	for at := 1; ; at++ {
		testbed.Must(t, errors.Join(rdb.FlushAll(t.Context()).Err(), dump.Restore(t.Context(), rdb)))
		cut := &testbed.Crasher{}
		cut.Arm(at+1, false)
		cutting := server.Client(t)
		cutting.AddHook(cut)
		_, err := storeAt(t, cutting).Migrate(t.Context())
		if err == nil {
			testbed.Require(t, at >= 10, "the migration took %d commands", at)
			return
		}
		testbed.Must(t, rdb.Del(t.Context(), "sf:lock:schema").Err()) // its lock expires
		_, err = storeAt(t, rdb).Migrate(t.Context())
		testbed.Require(t, err == nil, "after an end at command %d: %v", at, err)
		testbed.Diff(t, fmt.Sprintf("after an end at command %d", at), want, contents(t, rdb))
	}
}

// TestMigrationsAtOnce: many processes that start together migrate once, and all go on.
func TestMigrationsAtOnce(t *testing.T) {
	t.Parallel()
	rdb, _ := oldRecords(t)
	var group sync.WaitGroup
	for range 8 {
		s := storeAt(t, rdb)
		group.Go(func() {
			if _, err := s.Migrate(t.Context()); err != nil {
				t.Error(err)
			}
			version, err := s.StoredSchema(t.Context())
			testbed.Check(t, err == nil && version == store.Schema(), "StoredSchema = %d, %v", version, err)
		})
	}
	group.Wait()
	n := rdb.Exists(t.Context(), "sf:lock:schema").Val()
	testbed.Check(t, n == 0, "the lock of the migration is still taken")
}

// TestMigrationWaits: a process waits while another one migrates, and gives up when its context ends.
func TestMigrationWaits(t *testing.T) {
	t.Parallel()
	rdb, _ := oldRecords(t)
	s := storeAt(t, rdb)
	if held, err := s.Lock(t.Context(), "schema", "another", time.Minute); err != nil || !held {
		t.Fatal(held, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := s.Migrate(ctx); done <- err }()
	select {
	case err := <-done:
		t.Fatalf("Migrate did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	stop()
	err := <-done
	testbed.Check(t, errors.Is(err, context.Canceled), "Migrate = %v", err)
	n := rdb.Exists(t.Context(), schemaKey).Val()
	testbed.Check(t, n == 0, "the version was written by a process that did not migrate")
}

// TestNewerRecordsAreRefused: a program that is older than the records does not start, and changes nothing.
func TestNewerRecordsAreRefused(t *testing.T) {
	t.Parallel()
	rdb, _ := oldRecords(t)
	s := storeAt(t, rdb)
	for version, refused := range map[int]bool{store.Schema(): false, store.Schema() + 1: true} {
		testbed.Must(t, rdb.Set(t.Context(), schemaKey, version, 0).Err())
		before := contents(t, rdb)
		_, err := s.Migrate(t.Context())
		if got := farm.CodeOf(err) == farm.CodeConflict; got != refused || err != nil && !strings.Contains(err.Error(), "a newer program wrote them") {
			t.Errorf("Migrate of version %d = %v", version, err)
		}
		err = s.CheckSchema(t.Context())
		testbed.Check(t, (err != nil) == refused, "CheckSchema of version %d = %v", version, err)
		testbed.Diff(t, fmt.Sprintf("records of version %d were changed", version), before, contents(t, rdb))
	}
}
