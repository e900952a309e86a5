package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// JobFilter narrows a list of jobs. Zero fields do not.
type JobFilter struct {
	SandboxID string
	State     string
}

// Job reads a job. With WithWait the farm delays the answer until the job is final.
func (c *Client) Job(ctx context.Context, id string, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodGet, path: []string{"v1", "jobs", id}}, opts)
}

// Jobs lists the jobs of the tenant of the key, newest first, and fetches pages as needed.
func (c *Client) Jobs(ctx context.Context, filter JobFilter) iter.Seq2[wire.Job, error] {
	query := url.Values{}
	if filter.SandboxID != "" {
		query.Set("sandbox_id", filter.SandboxID)
	}
	if filter.State != "" {
		query.Set("state", filter.State)
	}
	return pages[wire.Job](ctx, c, []string{"v1", "jobs"}, query)
}

// JobRequest reads the full request of a job. In Job.Request, long code is cut.
func (c *Client) JobRequest(ctx context.Context, id string) (wire.JobSpec, error) {
	var got wire.JobSpec
	err := c.json(ctx, call{method: http.MethodGet, path: []string{"v1", "jobs", id, "request"}}, &got)
	return got, err
}

// Cancel cancels a job, queued or running. A final job does not change.
func (c *Client) Cancel(ctx context.Context, id string) (wire.Job, error) {
	var job wire.Job
	err := c.json(ctx, call{method: http.MethodDelete, path: []string{"v1", "jobs", id}}, &job)
	return job, err
}

// Wait waits until a job is final, whatever its outcome, and returns it. Only ctx limits it.
func (c *Client) Wait(ctx context.Context, id string) (wire.Job, error) {
	for attempt := 1; ; attempt++ {
		asked := time.Now()
		job, err := c.Job(ctx, id, WithWait(longPollSeconds*time.Second))
		if err != nil || job.Final() {
			return job, err
		}
		if time.Since(asked) > time.Second {
			attempt = 0
			continue
		}
		if err := sleep(ctx, c.pause(attempt)); err != nil { // the farm did not wait
			return job, err
		}
	}
}

// Failure is the error of a final job that the farm could not complete, as an *Error. It is nil for a completed job, whatever
// its code did.
func Failure(job wire.Job) error {
	if job.State == "completed" {
		return nil
	}
	e := &Error{Title: "The job is " + job.State, Code: "internal"}
	if job.State == "timed_out" || job.State == "canceled" {
		e.Code = "conflict"
	}
	if job.Error != nil {
		e.Code, e.Detail = job.Error.Code, job.Error.Message
	}
	return e
}
