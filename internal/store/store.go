package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Errors to check with errors.Is.
var (
	// ErrNotClaimable says that a job cannot be claimed: it is final, a live worker runs it, or it is not the head of its FIFO.
	ErrNotClaimable = errors.New("job is not claimable")
	// ErrFenced says that a job no longer runs under this attempt: it was taken over, forced or finished.
	ErrFenced = errors.New("job belongs to another attempt")
	// ErrMove says that the transition table does not allow a transition.
	ErrMove = errors.New("transition is not allowed")
	// ErrNoAnswer says that Redis did not answer, or cannot serve now. The command may have taken effect.
	ErrNoAnswer = errors.New("the record store does not answer")
)

// Options are the settings of a Store. Zero fields have defaults.
type Options struct {
	Prefix string           // before every key; default "sf:"
	Limits farm.Limits      // a zero value means farm.DefaultLimits
	Now    func() time.Time // default time.Now
	Logger *slog.Logger     // default slog.Default

	// Durability is what the acceptance, a checkpoint and the end of a job wait for.
	Durability Durability

	// Documents keeps values that are too large for Redis, see InlineBytes. Nil: Redis keeps all values.
	Documents Documents
}

// Store reads and writes the records. It is safe for concurrent use.
type Store struct {
	rdb     client
	listen  subscribe
	prefix  string
	limits  farm.Limits
	now     func() time.Time
	log     *slog.Logger
	scripts map[string]*script
	hub     *hub
	batch   *scriptBatch
	tenants *tenantCache
	onNodes *tenantCache // by "node tenant"

	durability Durability

	documents Documents // nil: none
	manifests *manifestCache

	memory  *memoryUse
	waiting *waitingTenants
}

// New makes a Store on a client, which the caller closes. tasks is the Lua code with which its scripts enqueue a job in the step that makes it
// runnable: it defines the function enqueueTask, see queue.EnqueueLua.
func New(rdb redis.UniversalClient, tasks string, o Options) *Store {
	if o.Prefix == "" {
		o.Prefix = "sf:"
	}
	if o.Limits == (farm.Limits{}) {
		o.Limits = farm.DefaultLimits()
	}
	o.Limits.QueueShare = cmp.Or(o.Limits.QueueShare, farm.DefaultLimits().QueueShare)
	o.Limits.MaxQueueDepth = cmp.Or(o.Limits.MaxQueueDepth, farm.DefaultLimits().MaxQueueDepth)
	o.Limits.MaxFinished = cmp.Or(o.Limits.MaxFinished, farm.DefaultLimits().MaxFinished)
	o.Limits.MaxKeys = cmp.Or(o.Limits.MaxKeys, farm.DefaultLimits().MaxKeys)
	o.Limits.MaxAudit = cmp.Or(o.Limits.MaxAudit, farm.DefaultLimits().MaxAudit)
	o.Limits.UsageDays = cmp.Or(o.Limits.UsageDays, farm.DefaultLimits().UsageDays)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Store{
		rdb: rdb, listen: subscriber(rdb), prefix: o.Prefix, limits: o.Limits, now: o.Now, log: o.Logger,
		scripts: loadScripts([]string{luaKeys(), generatedLua(o.Limits), tasks}, luaFiles), hub: newHub(subscriber(rdb), o.Prefix+string(FarmWatch)), batch: newBatch(rdb, o.Durability.confirm()), tenants: newTenantCache(), onNodes: newTenantCache(),
		durability: o.Durability, documents: o.Documents, manifests: newManifestCache(),
		memory: &memoryUse{}, waiting: &waitingTenants{queues: map[string]tenantsOfQueue{}},
	}
}

// Ping checks that Redis answers.
func (s *Store) Ping(ctx context.Context) error {
	return wrap("ping redis", s.rdb.Ping(ctx).Err())
}

// Close ends the subscriptions; it does not close the client.
func (s *Store) Close() error { return s.hub.close() }

// Persistence reads whether Redis writes an append-only file, and its eviction policy. Servers without CONFIG give an error.
func (s *Store) Persistence(ctx context.Context) (appendOnly bool, evictionPolicy string, err error) {
	aof, err := s.rdb.ConfigGet(ctx, "appendonly").Result()
	if err != nil {
		return false, "", wrap("read appendonly", err)
	}
	policy, err := s.rdb.ConfigGet(ctx, "maxmemory-policy").Result()
	if err != nil {
		return false, "", wrap("read maxmemory-policy", err)
	}
	return aof["appendonly"] == "yes", policy["maxmemory-policy"], nil
}

// micros is the form of a time in Redis: microseconds since 1970, empty for the zero time.
func micros(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return strconv.FormatInt(t.UnixMicro(), 10)
}

// wrap adds a code to an error of Redis: CodeUnavailable if a retry may succeed; none to a reply that a healthy server never gives, which is
// a bug of ours.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", what, err)
	}
	reply, ok := errors.AsType[redis.Error](err)
	if ok && !errors.Is(err, redis.Nil) && !transient(reply) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, farm.Wrap(fmt.Errorf("%w: %w", ErrNoAnswer, err), farm.CodeUnavailable, "The record store does not answer. Try again in a moment."))
}

// transient reports whether a reply says that the server cannot do this now, but may later.
func transient(err redis.Error) bool {
	for _, prefix := range []string{
		"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "OOM ", "MISCONF ", "NOREPLICAS ", "BUSY ", "ERR max number of clients",
	} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
