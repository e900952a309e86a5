// Package store keeps Sandfarm's records in Redis. Store puts four packages together: jobs, sandboxes, nodes and tenants. names.go has the names
// of their types, so callers import this package alone. Each is a folder with its Go files and its Lua scripts, which are called by the names of
// their files; a prelude in each has what its scripts share. They stand on package db; internal/store/db/keys.go has every key. This folder itself has the locks, the
// schema and its migrations.
//
// It promises that every change of a state is one Lua script that compares before it sets, by the transition tables of package farm and
// with the attempt number as the fence; that what Accept returned is in Redis; and that a record is found only under its own tenant. All
// keys of a tenant carry the hash tag {tenant}, so a script touches one slot, and that of a queue if it enqueues a task. Times are microseconds
// since 1970 in fields of hashes; what never changes is one JSON field.
//
// Values that are too large for Redis are documents in the object store (Options.Documents): requests, results, and all but the newest events of
// a job. The records refer to them, and readers do not notice. The index "docs" of a tenant says when those of a record are removed.
//
// Names of keys and fields in Redis are stored data and never change, so some of them are older than the words of the code: the FIFO is "line", a
// parked job "held", a queue slot "out".
//
// It does not move tasks (package queue does) and does not decide what to do with a job. Timeouts of single commands are those of the
// client. A server that does not expire keys on its own (miniredis) needs its clock set.
package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/store/jobs"
	"github.com/sandfarm/sandfarm/internal/store/nodes"
	"github.com/sandfarm/sandfarm/internal/store/sandboxes"
	"github.com/sandfarm/sandfarm/internal/store/tenants"
)

//go:embed *.lua
var scripts embed.FS

// The packages of records, under names that do not hide their lists, such as Store.Jobs.
type (
	jobStore     = jobs.Store
	sandboxStore = sandboxes.Store
	nodeStore    = nodes.Store
	tenantStore  = tenants.Store
)

// Store reads and writes the records: it has the methods of all of them. It is safe for concurrent use.
type Store struct {
	*jobStore
	*sandboxStore
	*nodeStore
	*tenantStore

	db         *db.DB
	durability Durability
}

// New makes a Store on a client, which the caller closes. tasks is the Lua code with which its scripts enqueue a job in the step that makes it
// runnable: it defines the function enqueueTask, see queue.EnqueueLua.
func New(rdb redis.UniversalClient, tasks string, o Options) *Store {
	d := db.New(rdb, tasks, o, tenants.Lua(), sandboxes.Lua(), jobs.Lua(), nodes.Lua(), scripts)
	j := jobs.New(d)
	return &Store{
		jobStore: j, sandboxStore: sandboxes.New(d), nodeStore: nodes.New(d), tenantStore: tenants.New(d, j.DropStrays),
		db: d, durability: o.Durability,
	}
}

// Ping checks that Redis answers.
func (s *Store) Ping(ctx context.Context) error {
	return db.Wrap("ping redis", s.db.Redis.Ping(ctx).Err())
}

// Close ends the subscriptions; it does not close the client.
func (s *Store) Close() error { return s.jobStore.Close() }

// Tenants lists every tenant for which a job was accepted.
func (s *Store) Tenants(ctx context.Context) ([]string, error) { return s.db.Tenants(ctx) }

// Persistence reads whether Redis writes an append-only file, and its eviction policy. Servers without CONFIG give an error.
func (s *Store) Persistence(ctx context.Context) (appendOnly bool, evictionPolicy string, err error) {
	aof, err := s.db.Redis.ConfigGet(ctx, "appendonly").Result()
	if err != nil {
		return false, "", db.Wrap("read appendonly", err)
	}
	policy, err := s.db.Redis.ConfigGet(ctx, "maxmemory-policy").Result()
	if err != nil {
		return false, "", db.Wrap("read maxmemory-policy", err)
	}
	return aof["appendonly"] == "yes", policy["maxmemory-policy"], nil
}

// syncedAfter is when a write is on the disk with appendfsync everysec. Redis syncs every second, and holds writes back by up to two seconds
// while a sync is slow.
const syncedAfter = 2 * time.Second

// DurableAfter is how long after its answer a finish counts as durable: a crash of Redis and of its machine does not lose it any more.
func (s *Store) DurableAfter() time.Duration {
	if s.durability == DurabilityEverySec {
		return syncedAfter
	}
	return 0
}

// CheckDurability checks that Redis can do what the durability asks for. CodeUnavailable: it does not answer.
func (s *Store) CheckDurability(ctx context.Context) error {
	switch s.durability {
	case DurabilityAOF:
		err := s.db.Redis.Do(ctx, "waitaof", 1, 0, 1).Err()
		switch reply, refused := errors.AsType[redis.Error](err); {
		case !refused || db.Transient(reply):
			return db.Wrap("check redis.durability", err)
		case strings.Contains(err.Error(), "unknown command"):
			return errors.New("redis.durability is aof, but this Redis has no WAITAOF: use Redis 7.2 or newer, or set redis.durability to everysec or replica")
		default: // it refuses to wait where there is no append-only file
			return fmt.Errorf("redis.durability is aof, but Redis refuses WAITAOF: set appendonly yes in its configuration: %w", err)
		}
	case DurabilityReplica:
		if n, err := s.db.Redis.Do(ctx, "wait", 1, 1).Int(); err != nil {
			return db.Wrap("check redis.durability", err)
		} else if n < 1 {
			s.db.Log.WarnContext(ctx, "redis.durability is replica, but Redis has no replica that is connected: jobs are refused until there is one")
		}
	}
	return nil
}

// Lock takes a lock, or renews it for its owner. held reports whether the owner has it now, for ttl.
func (s *Store) Lock(ctx context.Context, name, owner string, ttl time.Duration) (held bool, err error) {
	r, err := s.db.RunOn(ctx, "take lock", "lock_take", s.db.Farm(db.FarmLock, name), owner, ttl.Milliseconds())
	return r.Text(0) == "held", err
}

// Unlock releases a lock; it does nothing if another owner has it.
func (s *Store) Unlock(ctx context.Context, name, owner string) error {
	_, err := s.db.RunOn(ctx, "release lock", "lock_release", s.db.Farm(db.FarmLock, name), owner)
	return err
}

// LockTaken reports whether the lock has an owner now.
func (s *Store) LockTaken(ctx context.Context, name string) (bool, error) {
	n, err := s.db.Redis.Exists(ctx, s.db.Farm(db.FarmLock, name)).Result()
	return n == 1, db.Wrap("read lock", err)
}
