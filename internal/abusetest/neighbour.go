package abusetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// Neighbour is another tenant, who calls print(1) in a sandbox of its own.
type Neighbour struct {
	*client.Client
	Box string

	mu    sync.Mutex
	times []Call
	err   error

	refusals atomic.Int64
}

// RoundTrip counts the answers that refuse the neighbour: its client repeats such calls.
func (n *Neighbour) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil || answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode >= 500 {
		n.refusals.Add(1)
	}
	return answer, err
}

// refused is how many calls were refused since it was asked last.
func (n *Neighbour) refused() int { return int(n.refusals.Swap(0)) }

// Call is how long a call took, and what of that its job waited for a worker and was in the sandbox. The rest is the way there and back, and
// the records.
type Call struct{ Took, Queue, Run time.Duration }

func (c Call) String() string {
	return fmt.Sprintf("%.1f ms (queue %.1f, sandbox %.1f)", ms(c.Took), ms(c.Queue), ms(c.Run))
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
	part := func(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
	n.times = append(n.times, Call{took, part(job.Timings.QueueMS), part(job.Timings.RunMS)})
	return nil
}

// Quiet calls some times and returns the call at the 95th percentile.
func (n *Neighbour) Quiet(ctx context.Context, calls int) (Call, error) {
	for range calls {
		if err := n.once(ctx); err != nil {
			return Call{}, err
		}
	}
	p95, _, err := n.take()
	return p95, err
}

// Start calls until the returned function is called, which returns the call at the 95th percentile and the number of calls.
func (n *Neighbour) Start(ctx context.Context) func() (p95 Call, calls int, err error) {
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
	return func() (Call, int, error) {
		stop()
		<-done
		return n.take()
	}
}

// take returns the 95th percentile and the number of the calls since the last take, and forgets them.
func (n *Neighbour) take() (p95 Call, calls int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	times, err := n.times, n.err
	n.times, n.err = nil, nil
	if err != nil || len(times) == 0 {
		return Call{}, 0, errors.Join(err, errors.New("the neighbour had no answer"))
	}
	slices.SortFunc(times, func(a, b Call) int { return cmp.Compare(a.Took, b.Took) })
	return times[min(len(times)*95/100, len(times)-1)], len(times), nil
}
