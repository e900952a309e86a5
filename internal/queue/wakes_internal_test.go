package queue

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// slowPipes counts the commands of each pipeline, and holds the first one back.
type slowPipes struct {
	begun, release chan struct{}
	mu             sync.Mutex
	sizes          []int
}

func (s *slowPipes) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (s *slowPipes) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (s *slowPipes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "sadd" { // of a new connection
			return next(ctx, cmds)
		}
		s.mu.Lock()
		s.sizes = append(s.sizes, len(cmds))
		first := len(s.sizes) == 1
		s.mu.Unlock()
		if first {
			close(s.begun)
			<-s.release
		}
		return next(ctx, cmds)
	}
}

// Wake-ups that come while one is on its way are one for each queue, and each caller waits for its own.
func TestWakesAreSentTogether(t *testing.T) {
	t.Parallel()
	s := &slowPipes{begun: make(chan struct{}), release: make(chan struct{})}
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	rdb.AddHook(s)
	w := newWakes(rdb)
	var wg sync.WaitGroup
	wake := func(queue string) {
		wg.Go(func() {
			if err := w.Do(t.Context(), queue); err != nil {
				t.Errorf("wake %s = %v", queue, err)
			}
			if !rdb.SIsMember(t.Context(), queuesKey, queue).Val() {
				t.Errorf("queue %s is not registered", queue)
			}
		})
	}
	wake("a")
	<-s.begun
	ctx, leave := context.WithCancel(t.Context())
	leave()
	for range 100 {
		if err := w.Do(ctx, "c"); err == nil {
			t.Error("a caller that left has its wake-up")
		}
	}
	if err := w.Do(ctx, "b"); err == nil {
		t.Error("a caller that left has its wake-up")
	}
	wake("b")
	close(s.release)
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sizes) < 2 || s.sizes[0] != 2 || s.sizes[1] != 4 {
		t.Errorf("round trips had %v commands, want 2 and then 4", s.sizes)
	}
}
