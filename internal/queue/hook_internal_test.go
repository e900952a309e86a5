package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// asked sends a dequeue of a queue through a hook and returns how long the hook withheld the answer, by the fake clock of synctest.
func asked(t *testing.T, h *hook, queue string, answer error) time.Duration {
	t.Helper()
	cmd := redis.NewCmd(t.Context(), "evalsha", "sha", 4,
		listKey(queue, "pending"), listKey(queue, "paused"), listKey(queue, "active"), listKey(queue, "lease"))
	began := time.Now()
	if err := h.ProcessHook(func(context.Context, redis.Cmder) error { return answer })(t.Context(), cmd); !errors.Is(err, answer) {
		t.Errorf("the hook changed the answer %v to %v", answer, err)
	}
	return time.Since(began)
}

// The hook withholds the last empty answer of a round until a wake-up, or for a second; everything else passes at once.
func TestHookWaitsAtTheEndOfARound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHook(2, nil)
		want := func(what string, got, want time.Duration) {
			t.Helper()
			testbed.Diff(t, fmt.Sprintf("%s: the answer was withheld for", what), want, got)
		}
		want("first queue of a round", asked(t, h, "a", redis.Nil), 0)
		want("last queue of a round", asked(t, h, "b", redis.Nil), idleLook)
		want("a task", asked(t, h, "a", nil), 0)
		want("first queue after a task", asked(t, h, "b", redis.Nil), 0)

		go func() {
			time.Sleep(300 * time.Millisecond)
			h.signal("b")
		}()
		want("a wake-up while it waits", asked(t, h, "a", redis.Nil), 300*time.Millisecond)
		synctest.Wait()

		h.signal("b") // between two rounds: the wake-up is kept
		want("first queue", asked(t, h, "a", redis.Nil), 0)
		want("a wake-up from before", asked(t, h, "b", redis.Nil), 0)

		h.signal("a") // or it would not be asked
		want("Redis is down", asked(t, h, "a", errors.New("connection refused")), errorPause)
		close(h.stop)
		asked(t, h, "a", redis.Nil)
		want("a stopped server", asked(t, h, "b", redis.Nil), 0)
	})
}

// A queue whose gate is closed is not asked, and counts as empty.
func TestHookSkipsAClosedGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHook(2, func(queue string) bool { return queue != "closed" })
		if d := asked(t, h, "open", redis.Nil); d != 0 {
			t.Errorf("the open queue was withheld for %v", d)
		}
		cmd := redis.NewCmd(t.Context(), "evalsha", "sha", 4,
			listKey("closed", "pending"), listKey("closed", "paused"), listKey("closed", "active"), listKey("closed", "lease"))
		began := time.Now()
		err := h.ProcessHook(func(context.Context, redis.Cmder) error {
			t.Error("the queue behind the closed gate was asked")
			return nil
		})(t.Context(), cmd)
		if !errors.Is(err, redis.Nil) || time.Since(began) != idleLook {
			t.Errorf("closed queue: %v after %v, want an empty answer at the end of the round", err, time.Since(began))
		}
	})
}

// A queue that was empty is asked again after its own wake-up, or after a second.
func TestHookDoesNotAskAnEmptyQueueAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHook(3, nil)
		ask := func(queue string, answer error) (reached bool) {
			cmd := redis.NewCmd(t.Context(), "evalsha", "sha", 4,
				listKey(queue, "pending"), listKey(queue, "paused"), listKey(queue, "active"), listKey(queue, "lease"))
			_ = h.ProcessHook(func(context.Context, redis.Cmder) error { reached = true; return answer })(t.Context(), cmd)
			return reached
		}
		want := func(when, queue string, answer error, reached bool) {
			t.Helper()
			testbed.Diff(t, fmt.Sprintf("%s, queue %s: Redis was asked %v", when, queue, !reached), reached, ask(queue, answer))
		}
		h.signal("a") // kept, so that the first round does not wait
		for _, queue := range []string{"a", "b", "c"} {
			want("first look", queue, redis.Nil, true)
		}
		h.signal("b")
		want("another queue's wake-up", "a", redis.Nil, false)
		want("its wake-up", "b", nil, true)
		want("after a task", "b", redis.Nil, true)
		want("empty again", "b", redis.Nil, false)
		want("no wake-up", "c", redis.Nil, false)
		time.Sleep(idleLook)
		want("after a second", "c", redis.Nil, true)
		h.signal("")
		for _, queue := range []string{"a", "b"} {
			want("a wake-up of all", queue, nil, true)
		}
		cmd := redis.NewCmd(t.Context(), "evalsha", "sha", 4, listKey("a", "pending"), listKey("a", "paused"), listKey("a", "active"), listKey("a", "lease"))
		_ = h.ProcessHook(func(context.Context, redis.Cmder) error { h.signal("a"); return redis.Nil })(t.Context(), cmd)
		want("a wake-up while it was asked", "a", nil, true)
		want("an error", "a", errors.New("connection refused"), true)
		want("after an error", "a", nil, true)
	})
}

func TestRetryDelay(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]time.Duration{0: time.Second, 3: 4 * time.Second, 4: 5 * time.Second, 1000: 5 * time.Second} {
		if got := retryDelay(TypeJob, n); got != want {
			t.Errorf("a job waits %s after error %d, want %s", got, n, want)
		}
	}
	total := time.Duration(0)
	for n := range 15 {
		d := retryDelay(TypeCallback, n)
		if d < 5*time.Second || d > time.Hour {
			t.Errorf("a callback waits %s after error %d", d, n)
		}
		total += d
	}
	if total < 5*time.Hour || total > 12*time.Hour {
		t.Errorf("a callback is retried for %s", total)
	}
	testbed.Diff(t, "wait of a callback after many errors", time.Hour, retryDelay(TypeCallback, 1<<30))
}

// asynq keeps the text of an error with the task. That of a receiver's certificate with a name of 250 KB filled Redis: nobody is charged for it.
func TestErrorsThatAreKeptAreShort(t *testing.T) {
	t.Parallel()
	raw, err := encodePayload(Task{Ref: farm.Ref{Tenant: "a", ID: "job_1"}})
	testbed.Must(t, err)
	again := Later{time.Second}
	for _, size := range []int{len(again.Error()), maxErrorBytes - 1, maxErrorBytes, maxErrorBytes + 1, 250_000} {
		cause := errors.New(strings.Repeat("a", size-len(again.Error())))
		s := &Server{cfg: ServerConfig{Handler: func(context.Context, Task) error { return fmt.Errorf("%w%w", cause, again) }}}
		want := cause.Error() + again.Error()
		if size > maxErrorBytes {
			want = want[:maxErrorBytes] + "…"
		}
		err := s.handle(t.Context(), TypeCallback, raw)
		if _, later := errors.AsType[Later](err); err == nil || err.Error() != want || !errors.Is(err, cause) || !later {
			t.Errorf("of %d bytes asynq gets %.30v…", size, err)
		}
	}
}
