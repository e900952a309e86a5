package store

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// client is what the store uses of redis.UniversalClient, beside subscriptions. The store's types hold interfaces in place of the client's own
// types, since every package that imports this one would compile those again: 9 MB of object code for each.
type client interface {
	redis.Cmdable
	Do(ctx context.Context, args ...any) *redis.Cmd
}

// subscription is a connection to Redis that listens to channels: what the store uses of redis.PubSub.
type subscription interface {
	Subscribe(ctx context.Context, channels ...string) error
	PSubscribe(ctx context.Context, patterns ...string) error
	Unsubscribe(ctx context.Context, channels ...string) error
	Receive(ctx context.Context) (any, error)
	Close() error

	// messages are a *redis.Message for each message and a *redis.Subscription for each confirmation, also after a reconnect. size is how
	// many may wait. It is called once.
	messages(size int) <-chan any
}

// subscribe makes a subscription. It does not wait for Redis to confirm it.
type subscribe func(ctx context.Context, channels ...string) subscription

func subscriber(rdb redis.UniversalClient) subscribe {
	return func(ctx context.Context, channels ...string) subscription {
		return pubSub{rdb.Subscribe(ctx, channels...)}
	}
}

type pubSub struct{ *redis.PubSub }

func (p pubSub) messages(size int) <-chan any {
	return p.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(healthCheck), redis.WithChannelSize(size))
}
