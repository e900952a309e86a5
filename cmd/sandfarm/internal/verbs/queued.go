package verbs

import (
	"context"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

const (
	waitsAfter = 4 * time.Second  // until it is said what a queued job waits for; most begin at once
	waitsEvery = 10 * time.Second // until it is looked at again
)

// whileQueued says on stderr what a job waits for, as long as it is queued: after a while, and when it changes. stop ends that, and returns when
// nothing more is printed; it may be called again.
func (a *app) whileQueued(ctx context.Context, c *client.Client, id string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over, after := make(chan struct{}), a.After
	if after == nil {
		after = time.After
	}
	go func() {
		defer close(over)
		said := ""
		for pause := waitsAfter; ; pause = waitsEvery {
			select {
			case <-ctx.Done():
				return
			case <-after(pause):
			}
			job, err := c.Job(ctx, id)
			if err != nil && ctx.Err() == nil {
				continue // whoever waits for the job meets the error, too
			}
			if err != nil || job.State != "queued" {
				return
			}
			if job.Waiting != nil && job.Waiting.Message != said {
				said = job.Waiting.Message
				fmt.Fprintf(a.Err, "sandfarm: %s waits: %s\n", id, asFlags(said))
			}
		}
	}()
	return func() { cancel(); <-over }
}

// wait waits for the end of a job, and says what it waits for.
func (a *app) wait(ctx context.Context, c *client.Client, id string) (wire.Job, error) {
	defer a.whileQueued(ctx, c, id)()
	return c.Wait(ctx, id)
}
