package client

import (
	"math"
	"net/url"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// CallOption changes one request that starts work.
type CallOption func(*call)

// WithWait lets the farm hold its answer until the job is final, for at most d, which is rounded up to whole seconds
// and at most a minute. Without it the job comes back as it was accepted. See also [Client.Wait].
func WithWait(d time.Duration) CallOption {
	return func(in *call) { in.wait = int(min(math.Ceil(d.Seconds()), maxWaitSeconds)) }
}

// WithIdempotencyKey sends a key of your own (at most 255 visible ASCII characters): repeating the request with the same
// key and body, from another process too, gives the same job.
func WithIdempotencyKey(key string) CallOption { return func(in *call) { in.key = key } }

// WithKernel makes [Client.Interrupt] and [Client.Restart] touch one kernel, named by its context, instead of all.
func WithKernel(name string) CallOption {
	return func(in *call) { in.body = wire.ControlRequest{Context: name} }
}

// WithManager tells [Client.Package] whose package a name is: "pip" or "npm".
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
