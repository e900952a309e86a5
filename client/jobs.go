package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// JobFilter narrows a list of jobs. Zero fields do not.
type JobFilter struct {
	SandboxID string
	State     string // or several, with commas between them
	Kind      string // such as run; or several, with commas between them
	Outcome   string // ok or failed
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
	if filter.Kind != "" {
		query.Set("kind", filter.Kind)
	}
	if filter.Outcome != "" {
		query.Set("outcome", filter.Outcome)
	}
	return listPaged[wire.Job](ctx, c, []string{"v1", "jobs"}, query)
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

// Wait waits until a job is final, whatever its outcome, and returns it. Only ctx limits it. A farm that does not answer is asked again for
// about a minute.
func (c *Client) Wait(ctx context.Context, id string) (wire.Job, error) {
	var failed outage
	early := 0 // in a row: answers that came before the job was final or the wait was over
	for {
		asked := time.Now()
		job, err := c.Job(ctx, id, WithWait(longPollSeconds*time.Second))
		switch {
		case err == nil && job.Final():
			return job, nil
		case err != nil:
			err = c.outlast(ctx, &failed, err)
		case time.Since(asked) > time.Second:
			failed, early = outage{}, 0
		default:
			failed, early = outage{}, early+1
			err = sleep(ctx, c.pause(early))
		}
		if err != nil {
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

// pageSize is the largest page that the farm allows.
const pageSize = 200

// cursors are those of a list that were followed.
type cursors map[string]bool

// end reports whether a list ends before next: there is none, or it was followed before and would lead around.
func (c cursors) end(next string) bool {
	again := c[next]
	c[next] = true
	return next == "" || again
}

// listPaged lists all items, page by page. An error ends it.
func listPaged[T any](ctx context.Context, c *Client, path []string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		asked := url.Values{"limit": {strconv.Itoa(pageSize)}}
		for name, values := range query {
			asked[name] = values
		}
		at := cursors{}
		for {
			var got wire.List[T]
			if err := c.json(ctx, call{method: http.MethodGet, path: path, query: asked}, &got); err != nil {
				yield(zero, err)
				return
			}
			for _, item := range got.Items {
				if !yield(item, nil) {
					return
				}
			}
			next := string(got.NextCursor)
			if at.end(next) {
				return
			}
			asked.Set("cursor", next)
		}
	}
}

// listWhole reads a list without pages.
func listWhole[T any](ctx context.Context, c *Client, path ...string) ([]T, error) {
	var got wire.Items[T]
	err := c.json(ctx, call{method: http.MethodGet, path: path}, &got)
	return got.Items, err
}

// Install starts the installation of packages in a sandbox and returns its job. A package that fails is a result, not an error:
// the job completes with an outcome for each package. Poll [Client.Package] or the job.
func (c *Client) Install(ctx context.Context, id string, request wire.PackagesRequest, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodPost, path: sandboxPath(id, "packages"), body: request}, opts)
}

// Packages lists the packages of a sandbox: those of its image, those installed later, and those being installed.
func (c *Client) Packages(ctx context.Context, id string) ([]wire.Package, error) {
	return listWhole[wire.Package](ctx, c, sandboxPath(id, "packages")...)
}

// Package reads the status of a package of a sandbox. Names of Python packages are compared by PEP 503; names of npm packages
// may contain a slash. A missing package has the status not_found, which is not an error. WithManager names the installer;
// without it the farm decides by the form of the name.
func (c *Client) Package(ctx context.Context, id, name string, opts ...CallOption) (wire.Package, error) {
	var got wire.Package
	err := c.json(ctx, call{method: http.MethodGet, path: sandboxPath(id, "packages", name)}.with(opts), &got)
	return got, err
}
