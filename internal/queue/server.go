package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// abandonAfter is how long Stop waits for handlers after it has canceled their context.
const abandonAfter = 5 * time.Second

// ServerConfig are the queues and the handler of a Server.
type ServerConfig struct {
	Queues          map[string]int                    // name and weight; required
	Concurrency     int                               // how many handlers run at once; at least 1
	Handler         func(context.Context, Task) error // after an error the task is retried, see retryDelay and Later; required
	Logger          *slog.Logger                      // default slog.Default
	ShutdownTimeout time.Duration                     // how long Stop waits for handlers; default 8 s

	// Gate is asked before a task is taken from a queue; false pauses the queue. It must answer at once, from memory. It is asked again after a
	// second, or at Server.Wake. Nil: no queue is paused.
	Gate func(queue string) bool

	// Hook sees the commands to Redis, without the waits of the server's own hook. Nil: none.
	Hook redis.Hook
}

// Server takes tasks from queues and runs a handler for each. It survives outages of Redis.
type Server struct {
	cfg    ServerConfig
	rdb    io.Closer
	listen listen
	hook   *hook
	start  func() error // of asynq, see tasks
	finish func()       // of asynq: waits for the handlers

	mu      sync.Mutex
	state   string // "", started, stopped
	wake    io.Closer
	stopped chan struct{}
	pump    sync.WaitGroup
	running sync.WaitGroup
}

// listen subscribes to channels. Closing the subscription closes messages.
type listen func(channels []string) (messages <-chan any, subscription io.Closer)

func listenOn(rdb redis.UniversalClient) listen {
	return func(channels []string) (<-chan any, io.Closer) {
		sub := rdb.Subscribe(context.Background(), channels...) //nolint:forbidigo // the subscription lives until Stop
		return sub.ChannelWithSubscriptions(), sub
	}
}

// NewServer makes a Server. It gets a client of its own from dial, and closes it. Redis need not be up yet.
func NewServer(dial func() redis.UniversalClient, cfg ServerConfig) (*Server, error) {
	var problems []error
	if len(cfg.Queues) == 0 {
		problems = append(problems, errors.New("no queue is given"))
	}
	for name, weight := range cfg.Queues {
		if name == "" || weight < 1 {
			problems = append(problems, fmt.Errorf("queue %q has weight %d", name, weight))
		}
	}
	if cfg.Concurrency < 1 {
		problems = append(problems, fmt.Errorf("concurrency is %d", cfg.Concurrency))
	}
	if cfg.Handler == nil {
		problems = append(problems, errors.New("no handler is given"))
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("make queue server: %w", errors.Join(problems...))
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.ShutdownTimeout <= 0 {
		cfg.ShutdownTimeout = 8 * time.Second
	}
	rdb := dial()
	s := &Server{cfg: cfg, rdb: rdb, listen: listenOn(rdb), hook: newHook(len(cfg.Queues), cfg.Gate), stopped: make(chan struct{})}
	rdb.AddHook(s.hook)
	if cfg.Hook != nil {
		rdb.AddHook(cfg.Hook)
	}
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{
		Concurrency:              cfg.Concurrency,
		Queues:                   cfg.Queues,
		ShutdownTimeout:          cfg.ShutdownTimeout,
		TaskCheckInterval:        1,           // the hook waits
		DelayedTaskCheckInterval: time.Second, // retries
		RetryDelayFunc: func(n int, err error, t *asynq.Task) time.Duration {
			if later, ok := errors.AsType[Later](err); ok {
				return later.In
			}
			return retryDelay(t.Type(), n)
		},
		IsFailure: isTry,
		Logger:    logger{cfg.Logger},
		LogLevel:  asynq.WarnLevel,
	})
	s.start = func() error {
		return server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error { return s.handle(ctx, t.Type(), t.Payload()) }))
	}
	s.finish = server.Shutdown
	return s, nil
}

// retryDelay is how long a task waits after its n-th error. Jobs are retried soon, since callers wait for them. Callbacks back off, since
// their receiver may be down: fifteen tries take more than six hours.
func retryDelay(kind string, n int) time.Duration {
	if kind == TypeCallback {
		return min(5*time.Second<<min(max(n, 0), 10), time.Hour)
	}
	return time.Duration(min(1+n, 5)) * time.Second
}

// Start starts taking tasks. It does not wait for Redis.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != "" {
		return fmt.Errorf("start queue server: it has been %s", s.state)
	}
	channels := make([]string, 0, len(s.cfg.Queues))
	for name := range s.cfg.Queues {
		channels = append(channels, wakeChannel(name))
	}
	slices.Sort(channels)
	messages, wake := s.listen(channels)
	s.wake = wake
	s.pump.Go(func() {
		for m := range messages { // a reconnect wakes too: wake-ups may have been missed
			if wake, ok := m.(*redis.Message); ok {
				s.hook.signal(strings.TrimPrefix(wake.Channel, wakeChannel("")))
			} else {
				s.hook.signal("")
			}
		}
	})
	if err := s.start(); err != nil {
		return fmt.Errorf("start queue server: %w", err)
	}
	s.state = "started"
	return nil
}

// Wake makes the server poll its queues now. It never blocks, and may be called at any time.
func (s *Server) Wake() { s.hook.signal("") }

// Stop stops taking tasks, waits for the handlers up to ShutdownTimeout, cancels the contexts of those that still run (their tasks are
// requeued) and closes the client. It may be called more than once, and before Start.
func (s *Server) Stop() {
	s.mu.Lock()
	before := s.state
	s.state = "stopped"
	s.mu.Unlock()
	if before == "stopped" {
		<-s.stopped
		return
	}
	defer close(s.stopped)
	close(s.hook.stop)
	if before == "started" {
		s.finish()
		if !waitFor(&s.running, abandonAfter) {
			s.cfg.Logger.Error("handlers still run after their context was canceled", "waited_ms", abandonAfter.Milliseconds())
		}
		if err := s.wake.Close(); err != nil {
			s.cfg.Logger.Warn("wake-up subscription not closed", "error", err)
		}
		s.pump.Wait()
	}
	if err := s.rdb.Close(); err != nil {
		s.cfg.Logger.Warn("queue connection not closed", "error", err)
	}
}

// maxErrorBytes is how much of the text of an error is kept with its task, in Redis.
const maxErrorBytes = 1000

// shortError is an error with a short text: others may have chosen it, such as the receiver of a callback.
type shortError struct{ error }

// Error returns at most maxErrorBytes and the mark of a cut.
func (e shortError) Error() string { return farm.ShortenTo(e.error.Error(), maxErrorBytes) }

// Unwrap returns the whole error.
func (e shortError) Unwrap() error { return e.error }

// handle runs the handler. A panic counts as an error. The text of an error is short.
func (s *Server) handle(ctx context.Context, kind string, payload []byte) (err error) {
	s.running.Add(1)
	defer s.running.Done()
	defer func() {
		if err != nil {
			err = shortError{err}
		}
	}()
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Logger.ErrorContext(ctx, "handler panicked", "type", kind, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("handle task: panic: %v", p)
		}
	}()
	task, err := decodePayload(kind, payload)
	if err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry) // a retry would fail too
	}
	task.Try = tryOf(ctx, kind)
	task.Queue, _ = asynq.GetQueueName(ctx)
	if err = s.cfg.Handler(ctx, task); err != nil && task.Try.RetryIn == 0 && isTry(err) {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry) // not spareRetry
	}
	return err
}

func waitFor(wg *sync.WaitGroup, at time.Duration) bool {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(at):
		return false
	}
}

// logger passes asynq's log lines to slog.
type logger struct{ to *slog.Logger }

func (l logger) Debug(args ...any) { l.to.Debug("asynq", "text", fmt.Sprint(args...)) }
func (l logger) Info(args ...any)  { l.to.Info("asynq", "text", fmt.Sprint(args...)) }
func (l logger) Warn(args ...any)  { l.to.Warn("asynq", "text", fmt.Sprint(args...)) }
func (l logger) Error(args ...any) { l.to.Error("asynq", "text", fmt.Sprint(args...)) }

// Fatal only logs: asynq must not end the process.
func (l logger) Fatal(args ...any) { l.to.Error("asynq", "text", fmt.Sprint(args...), "fatal", true) }
