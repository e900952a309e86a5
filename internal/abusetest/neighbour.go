package abusetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// Neighbour is another tenant, who calls print(1) in a sandbox of its own.
type Neighbour struct {
	*client.Client
	Box string

	mu    sync.Mutex
	times []time.Duration
	err   error
}

// once calls print(1) and notes how long it took.
func (n *Neighbour) once(ctx context.Context) error {
	began := time.Now()
	job, err := n.Execute(ctx, n.Box, wire.ExecuteRequest{Code: "print(1)"}, client.WithWait(60*time.Second))
	took := time.Since(began)
	switch {
	case err != nil:
		return fmt.Errorf("the neighbour's print(1): %w", err)
	case job.State != "completed" || job.Result == nil || job.Result.Execute == nil || job.Result.Execute.Stdout != "1\n" || job.Attempt != 1:
		return fmt.Errorf("the neighbour's print(1) is %s at attempt %d: %+v", job.State, job.Attempt, job.Error)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.times = append(n.times, took)
	return nil
}

// Quiet calls some times and returns the 95th percentile.
func (n *Neighbour) Quiet(ctx context.Context, calls int) (time.Duration, error) {
	for range calls {
		if err := n.once(ctx); err != nil {
			return 0, err
		}
	}
	p95, _, err := n.take()
	return p95, err
}

// Start calls until the returned function is called, which returns the 95th percentile and the number of calls.
func (n *Neighbour) Start(ctx context.Context) func() (p95 time.Duration, calls int, err error) {
	calling, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for calling.Err() == nil {
			if err := n.once(ctx); err != nil { // ctx: the last call ends by itself
				n.mu.Lock()
				n.err = errors.Join(n.err, err)
				n.mu.Unlock()
				return
			}
		}
	}()
	return func() (time.Duration, int, error) {
		stop()
		<-done
		return n.take()
	}
}

// take returns the 95th percentile and the number of the calls since the last take, and forgets them.
func (n *Neighbour) take() (p95 time.Duration, calls int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	times, err := n.times, n.err
	n.times, n.err = nil, nil
	if err != nil || len(times) == 0 {
		return 0, 0, errors.Join(err, errors.New("the neighbour had no answer"))
	}
	slices.Sort(times)
	return times[min(len(times)*95/100, len(times)-1)], len(times), nil
}
