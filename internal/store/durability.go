package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Durability says what the acceptance, a checkpoint and the end of a job wait for. The zero value waits for nothing, and counts what Redis has
// answered as durable: for a Redis without a file.
type Durability string

// The durabilities.
const (
	// DurabilityEverySec waits for nothing. A write is durable a little later, by Redis' own fsync of its append-only file.
	DurabilityEverySec Durability = "everysec"
	// DurabilityAOF waits until the append-only file is synced (WAITAOF 1 0, Redis 7.2 or newer).
	DurabilityAOF Durability = "aof"
	// DurabilityReplica waits until one replica has the write (WAIT 1).
	DurabilityReplica Durability = "replica"
)

const (
	// syncedAfter is when a write is on the disk with appendfsync everysec. Redis syncs every second, and holds writes back by up to two seconds
	// while a sync is slow.
	syncedAfter = 2 * time.Second
	// confirmTimeout is how long a write waits for the file or the replica. It is less than the client waits for an answer.
	confirmTimeout = 2 * time.Second
)

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
		err := s.rdb.Do(ctx, "waitaof", 1, 0, 1).Err()
		switch reply, refused := errors.AsType[redis.Error](err); {
		case !refused || transient(reply):
			return wrap("check redis.durability", err)
		case strings.Contains(err.Error(), "unknown command"):
			return errors.New("redis.durability is aof, but this Redis has no WAITAOF: use Redis 7.2 or newer, or set redis.durability to everysec or replica")
		default: // it refuses to wait where there is no append-only file
			return fmt.Errorf("redis.durability is aof, but Redis refuses WAITAOF: set appendonly yes in its configuration: %w", err)
		}
	case DurabilityReplica:
		if n, err := s.rdb.Do(ctx, "wait", 1, 1).Int(); err != nil {
			return wrap("check redis.durability", err)
		} else if n < 1 {
			s.log.WarnContext(ctx, "redis.durability is replica, but Redis has no replica that is connected: jobs are refused until there is one")
		}
	}
	return nil
}

// confirm is the command that waits for the writes of a pipeline: Redis waits for the writes of one connection only. Nil adds nothing.
type confirm struct{ args []any }

func (d Durability) confirm() *confirm {
	switch d {
	case DurabilityAOF:
		return &confirm{[]any{"waitaof", 1, 0, confirmTimeout.Milliseconds()}}
	case DurabilityReplica:
		return &confirm{[]any{"wait", 1, confirmTimeout.Milliseconds()}}
	default:
		return nil
	}
}

// add adds the command to a pipeline. When that was sent, result says whether its writes are durable.
func (c *confirm) add(ctx context.Context, p redis.Pipeliner, keys []string) (result func() error) {
	if c == nil {
		return func() error { return nil }
	}
	// A call that is repeated may write nothing. Then this write is waited for, which comes after all that the first call wrote.
	p.Set(ctx, keys[0]+string(IndexConfirm), 1, 0)
	wait := p.Do(ctx, c.args...)
	return func() error {
		reply, err := wait.Result()
		if err != nil {
			return err
		}
		if counts, ok := reply.([]any); ok && len(counts) > 0 { // of WAITAOF: files and replicas that have synced
			reply = counts[0]
		}
		if n, ok := reply.(int64); !ok || n < 1 {
			return errUnconfirmed
		}
		return nil
	}
}

// errUnconfirmed says that a write was made, but may still be lost.
var errUnconfirmed = farm.Errorf(farm.CodeUnavailable, "The record store did not confirm in time that the write is safe. Repeat the request, with the same Idempotency-Key if it has one.")
