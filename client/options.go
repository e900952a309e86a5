package client

import (
	"math"
	"net/url"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// CallOption changes one request that starts work.
type CallOption func(*call)

// WithWait makes the farm delay its answer until the job is final, for at most d, rounded up to whole seconds and limited to
// a minute. Without it the answer is the accepted job. See also [Client.Wait].
func WithWait(d time.Duration) CallOption {
	return func(in *call) { in.wait = int(min(math.Ceil(d.Seconds()), maxWaitSeconds)) }
}

// WithIdempotencyKey sends your own key (at most 255 visible ASCII characters). Another request with the same key and body,
// also from another process, returns the same job.
func WithIdempotencyKey(key string) CallOption { return func(in *call) { in.key = key } }

// WithKernel limits [Client.Interrupt] and [Client.Restart] to the kernel of one context.
func WithKernel(name string) CallOption {
	return func(in *call) { in.body = wire.ControlRequest{Context: name} }
}

// WithManager tells [Client.Package] which installer a package belongs to: "pip" or "npm".
func WithManager(name string) CallOption {
	return func(in *call) { in.query = url.Values{"manager": {name}} }
}

func (in call) with(opts []CallOption) call {
	for _, opt := range opts {
		opt(&in)
	}
	in.wait = max(in.wait, 0)
	return in
}
