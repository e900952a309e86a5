// Package db is what the packages of records below package store share: the client of Redis, every key, the scripts, large values in the object store, lists in pages,
// and which tenants there are.
//
// It promises that a script touches one slot, in one step, and that an error of Redis has the code that says whether a retry may succeed.
package db

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	// ErrDocumentGone says that the object store has lost the document of a record. The record is there.
	ErrDocumentGone = errors.New("the document of the record is gone")
	// ErrNoAnswer says that Redis did not answer, or cannot serve now. The command may have taken effect.
	ErrNoAnswer = errors.New("the record store does not answer")
)

// Options are the settings of a store. Zero fields have defaults.
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

// DB is the farm's Redis, with its scripts, and the object store beside it. It is safe for concurrent use.
type DB struct {
	Redis     Client
	Listen    Subscribe
	Limits    farm.Limits
	Now       func() time.Time
	Log       *slog.Logger
	Documents Documents // nil: none

	prefix  string
	scripts map[string]*script
	batch   *scriptBatch
	tenants *recent
	onNodes *recent // by "node tenant"
	memory  *memoryUse
}

// New makes a DB on a client, which the caller closes. tasks is the Lua code that enqueues a task. folders have the scripts, and may use the preludes
// of those before them.
func New(rdb redis.UniversalClient, tasks string, o Options, folders ...fs.FS) *DB {
	o.Prefix = cmp.Or(o.Prefix, "sf:")
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
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return &DB{
		Redis: rdb, Listen: subscriber(rdb), Limits: o.Limits, Now: o.Now, Log: o.Logger, Documents: o.Documents,
		prefix: o.Prefix, scripts: loadScripts([]string{luaKeys(), generatedLua(o.Limits), tasks}, append([]fs.FS{prelude}, folders...)...),
		batch: newBatch(rdb, o.Durability.confirm()), tenants: newRecent(), onNodes: newRecent(), memory: &memoryUse{},
	}
}

// Micros is the form of a time in Redis: microseconds since 1970, empty for the zero time.
func Micros(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return strconv.FormatInt(t.UnixMicro(), 10)
}

// Wrap adds a code to an error of Redis: CodeUnavailable if a retry may succeed; none to a reply that a healthy server never gives, which is
// a bug of ours.
func Wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", what, err)
	}
	reply, ok := errors.AsType[redis.Error](err)
	if ok && !errors.Is(err, redis.Nil) && !Transient(reply) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, farm.Wrap(fmt.Errorf("%w: %w", ErrNoAnswer, err), farm.CodeUnavailable, "The record store does not answer. Try again in a moment."))
}

// Transient reports whether a reply says that the server cannot do this now, but may later.
func Transient(err redis.Error) bool {
	for _, prefix := range []string{
		"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "OOM ", "MISCONF ", "NOREPLICAS ", "BUSY ", "ERR max number of clients",
	} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// healthCheck is how long a subscription may be silent before its connection is checked: an unreported cut is found within twice
// this time.
const healthCheck = 3 * time.Second

// Client is what the store uses of redis.UniversalClient, beside subscriptions. The store's types hold interfaces in place of the client's own
// types, since every package that imports this one would compile those again: 9 MB of object code for each.
type Client interface {
	redis.Cmdable
	Do(ctx context.Context, args ...any) *redis.Cmd
}

// Subscription is a connection to Redis that listens to channels: what the store uses of redis.PubSub.
type Subscription interface {
	Subscribe(ctx context.Context, channels ...string) error
	PSubscribe(ctx context.Context, patterns ...string) error
	Unsubscribe(ctx context.Context, channels ...string) error
	Receive(ctx context.Context) (any, error)
	Close() error

	// Messages are a *redis.Message for each message and a *redis.Subscription for each confirmation, also after a reconnect. size is how
	// many may wait. It is called once.
	Messages(size int) <-chan any
}

// Subscribe makes a subscription. It does not wait for Redis to confirm it.
type Subscribe func(ctx context.Context, channels ...string) Subscription

func subscriber(rdb redis.UniversalClient) Subscribe {
	return func(ctx context.Context, channels ...string) Subscription {
		return pubSub{rdb.Subscribe(ctx, channels...)}
	}
}

type pubSub struct{ *redis.PubSub }

func (p pubSub) Messages(size int) <-chan any {
	return p.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(healthCheck), redis.WithChannelSize(size))
}
