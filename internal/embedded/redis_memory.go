package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// clockTick is how often the clock of the in-process server is advanced: it does not expire keys on its own.
const clockTick = 100 * time.Millisecond

// startMemory serves an in-process Redis on a unix socket: clients see no difference, and no other user of the machine can
// connect.
func startMemory(ctx context.Context, cfg RedisConfig, addr string) (*Redis, error) {
	if err := os.Remove(addr); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old Redis socket: %w", err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "unix", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for Redis: %w", err)
	}
	if err := os.Chmod(addr, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict Redis socket: %w", err), listener.Close())
	}
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m := &memory{db: miniredis.NewMiniRedis(), listener: listener}
	m.all.Go(func() { m.accept(runCtx) })
	m.all.Go(func() { m.tick(runCtx) })
	cfg.Logger.WarnContext(ctx, "no redis-server found: an in-process one is used, and jobs do not outlive this process",
		slog.String("socket", addr))
	stop := func() error {
		cancel()
		err := listener.Close()
		m.all.Wait()
		m.db.Close()
		return err
	}
	return &Redis{addr: addr, stop: stop}, nil
}

type memory struct {
	db       *miniredis.Miniredis
	listener net.Listener
	all      sync.WaitGroup
}

// accept relays each connection to the server, until the listener closes.
func (m *memory) accept(ctx context.Context) {
	for {
		outer, err := m.listener.Accept()
		if err != nil {
			return
		}
		inner, err := m.db.Dial()
		if err != nil {
			_ = outer.Close()
			continue
		}
		m.all.Go(func() { relay(ctx, outer, inner) })
	}
}

// relay copies both ways until one side ends or ctx does.
func relay(ctx context.Context, a, b net.Conn) {
	closeBoth := sync.OnceFunc(func() {
		_ = a.Close()
		_ = b.Close()
	})
	defer context.AfterFunc(ctx, closeBoth)()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(a, b); closeBoth() })
	both.Go(func() { _, _ = io.Copy(b, a); closeBoth() })
	both.Wait()
}

func (m *memory) tick(ctx context.Context) {
	ticker := time.NewTicker(clockTick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			m.db.FastForward(now.Sub(last))
			last = now
		}
	}
}
