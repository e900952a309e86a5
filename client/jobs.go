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

// Job reads a job. With WithWait the farm holds the answer until the job is final.
func (c *Client) Job(ctx context.Context, id string, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodGet, path: []string{"v1", "jobs", id}}, opts)
}

// Jobs walks the jobs of the key's tenant, newest first.
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

// JobRequest reads the whole of what a job was asked to do. Job.Request holds long code in part.
func (c *Client) JobRequest(ctx context.Context, id string) (wire.JobSpec, error) {
	var got wire.JobSpec
	err := c.json(ctx, call{method: http.MethodGet, path: []string{"v1", "jobs", id, "request"}}, &got)
	return got, err
}

// Cancel ends a job, queued or running. A final job stays as it is.
func (c *Client) Cancel(ctx context.Context, id string) (wire.Job, error) {
	var job wire.Job
	err := c.json(ctx, call{method: http.MethodDelete, path: []string{"v1", "jobs", id}}, &job)
	return job, err
}

// Wait gives the job once it is final, however it ended. It is bounded by ctx alone.
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
		if err := sleep(ctx, c.pause(attempt)); err != nil { // the farm did not hold the answer
			return job, err
		}
	}
}

// Failure gives what went wrong with the farm in a final job: nil for a completed one, whatever its code did, and an
// *Error otherwise.
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
