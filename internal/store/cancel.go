package store

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// healthCheck is how long a subscription may be silent before its connection is checked: an unreported cut is found within twice
// this time.
const healthCheck = 3 * time.Second

// maxCancels is how many cancels a worker has not looked at yet; more are dropped by the client.
const maxCancels = 100

// Cancels is a worker's subscription to cancels of running jobs and to changed deadlines and hosts of sandboxes.
type Cancels struct {
	refs chan farm.Ref
	sub  subscription
	done chan struct{}
	once sync.Once
	wg   sync.WaitGroup
}

// Cancels subscribes to the cancels of all tenants. It returns once Redis has confirmed the subscription.
func (s *Store) Cancels(ctx context.Context) (*Cancels, error) {
	sub := s.listen(ctx, s.Farm(FarmCancel, ""))
	if _, err := sub.Receive(ctx); err != nil {
		return nil, errors.Join(wrap("subscribe to cancels", err), sub.Close())
	}
	c := &Cancels{refs: make(chan farm.Ref, 64), sub: sub, done: make(chan struct{})}
	messages := sub.messages(maxCancels)
	c.wg.Go(func() { c.pump(messages) })
	return c, nil
}

// C delivers the jobs to cancel and the sandboxes whose deadline or hosts changed. The zero Ref means that messages may have been missed: check
// CancelRequested of every job that runs here. Close closes the channel.
func (c *Cancels) C() <-chan farm.Ref { return c.refs }

// Close ends the subscription.
func (c *Cancels) Close() error {
	var err error
	c.once.Do(func() {
		close(c.done)
		err = c.sub.Close()
	})
	c.wg.Wait()
	return err
}

func (c *Cancels) pump(messages <-chan any) {
	defer close(c.refs)
	for {
		var ref farm.Ref // stays zero after a reconnect
		select {
		case <-c.done:
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			if message, isMessage := m.(*redis.Message); isMessage {
				if json.Unmarshal([]byte(message.Payload), &ref) != nil {
					ref = farm.Ref{} // unreadable: the worker must check the flags
				}
			}
		}
		select {
		case <-c.done:
			return
		case c.refs <- ref:
		}
	}
}

// CancelRequested reports whether a cancel of the job was requested.
func (s *Store) CancelRequested(ctx context.Context, ref farm.Ref) (bool, error) {
	value, err := s.rdb.HGet(ctx, s.Key(ref.Tenant, KeyJob, ref.ID), "cancel").Result()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return value == "1", wrap("read cancel flag", err)
}

// hint is the message on the cancel channel.
func hint(ref farm.Ref) []byte {
	data, err := json.Marshal(ref)
	if err != nil {
		return []byte("{}") // two strings always encode; an empty hint makes workers check the flags
	}
	return data
}
