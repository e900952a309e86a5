package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) jobRoutes() []rest.Route {
	filters := append(byOrigin(), rest.Query("state", "only in these states, separated by commas", stateSchema(farm.JobStates())), rest.Query("kind", "only of these kinds, separated by commas", object{"type": "string"}),
		rest.Query("outcome", "only with this outcome", stateSchema(farm.JobOutcomes())))
	after := rest.Parameter{Name: "Last-Event-ID", In: "header", Doc: "id of the last event that was seen", Schema: object{"type": "string"}}
	return []rest.Route{
		{Method: "GET", Path: "/v1/jobs", Tag: "Jobs", Summary: "List jobs", Query: filters, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "a page of jobs, newest first", Body: wire.List[wire.Job]{}}}, Handler: s.listJobs},
		{Method: "POST", Path: "/v1/jobs/batch", Tag: "Jobs", Summary: "Start many jobs at once", Detail: "With a wait the answer comes when all jobs have ended or the time is up, and shows each as it is then.", Body: wire.BatchRequest{}, Answers: []rest.Answer{{Status: http.StatusMultiStatus, Doc: "one outcome for each entry, in order", Body: wire.BatchResult{}}}, Wait: true, Idempotent: true, Handler: s.batch},
		{Method: "GET", Path: "/v1/jobs/{id}", Tag: "Jobs", Summary: "Read a job, or wait for it", Answers: []rest.Answer{
			{Status: http.StatusOK, Doc: "the job", Body: wire.Job{}},
			{Status: http.StatusAccepted, Doc: "the job, which did not end within the wait", Body: wire.Job{}},
		}, Wait: true, Handler: s.readJob},
		{Method: "DELETE", Path: "/v1/jobs/{id}", Tag: "Jobs", Summary: "Cancel a job", Detail: "A finished job stays as it is.", Answers: []rest.Answer{
			{Status: http.StatusOK, Doc: "the job, which has ended", Body: wire.Job{}},
			{Status: http.StatusAccepted, Doc: "the job, which is being canceled", Body: wire.Job{}},
		}, Wait: true, Handler: s.cancelJob},
		{Method: "GET", Path: "/v1/jobs/{id}/request", Tag: "Jobs", Summary: "Read the request of a job", Detail: "All of it, where the job's own request is cut. Values of env and contents of files are not shown.", Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the request", Body: wire.JobSpec{}}}, Handler: s.jobRequest},
		{
			Method: "GET", Path: "/v1/jobs/{id}/events", Tag: "Jobs", Summary: "Follow a job", Detail: "Server-sent events stdout, stderr, display, clear, progress, artifact and state; from the start or behind the given id, also after the end. The final state is last.",
			Query:   []rest.Parameter{after, rest.Query("after", "the same as Last-Event-ID", object{"type": "string"})},
			Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the events", Media: "text/event-stream"}}, Handler: s.events,
		},
	}
}

func (s *Server) listJobs(c *gin.Context) error {
	p, created, err := rest.PageOf(c)
	if err != nil {
		return err
	}
	list, err := s.service.Jobs(c.Request.Context(), rest.Tenant(c), service.JobQuery{
		SandboxID: c.Query("sandbox_id"), JobID: c.Query("job_id"), States: rest.List(c, "state"), Kinds: rest.List(c, "kind"), Outcome: c.Query("outcome"), Created: created, Page: p,
	})
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) readJob(c *gin.Context) error {
	wait, err := s.wait(c, 0)
	if err != nil {
		return err
	}
	out, err := s.service.Job(c.Request.Context(), rest.Tenant(c), c.Param("id"), wait)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if wait > 0 && !out.Done() {
		status = http.StatusAccepted
	}
	return rest.Reply(c, status, out.Job)
}

func (s *Server) cancelJob(c *gin.Context) error {
	wait, err := s.wait(c, 0)
	if err != nil {
		return err
	}
	out, err := s.service.Cancel(c.Request.Context(), rest.Tenant(c), c.Param("id"), wait)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if !out.Done() {
		status = http.StatusAccepted
	}
	return rest.Reply(c, status, out.Job)
}

func (s *Server) batch(c *gin.Context) error {
	var r wire.BatchRequest
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	call, err := s.call(c, 0, body)
	if err != nil {
		return err
	}
	ctx := c.Request.Context()
	batch, err := s.service.Batch(ctx, call, r.Jobs, func(more int) (int, error) { return s.gate.More(ctx, call.Tenant, more) })
	if err != nil {
		return err
	}
	rest.ReplyList(c, http.StatusMultiStatus, "jobs", func(yield func(any) bool) {
		i := 0
		for out := range batch.Outcomes(c.Request.Context()) {
			if !yield(s.batchOutcome(c, i, out)) {
				return
			}
			i++
		}
	})
	return nil
}

func (s *Server) batchOutcome(c *gin.Context, entry int, out *service.BatchOutcome) wire.BatchOutcome {
	if out.Err == nil {
		return wire.BatchOutcome{Job: &out.Job, Sandbox: out.Sandbox}
	}
	problem := rest.Problem(c, s.log, out.Err)
	for i := range problem.Errors {
		problem.Errors[i].Pointer = strict.Pointer("/jobs", strconv.Itoa(entry)) + problem.Errors[i].Pointer
	}
	return wire.BatchOutcome{Error: &problem}
}

func (s *Server) jobRequest(c *gin.Context) error {
	spec, err := s.service.JobRequest(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, spec)
}

// events streams the events of a job until its final state.
func (s *Server) events(c *gin.Context) error {
	ctx := c.Request.Context()
	reader, err := s.service.Events(ctx, rest.Tenant(c), c.Param("id"), lastEvent(c))
	if err != nil {
		return err
	}
	if err := s.sendEvents(c, reader, "events of "+c.Param("id")); err != nil {
		s.log.WarnContext(ctx, "event stream broke off", slog.String("request_id", rest.RequestID(c)), slog.Any("error", err))
		panic(http.ErrAbortHandler) // the caller reconnects with its last id
	}
	return nil
}

// lastEvent is the id of the last event that the caller has, which a header or the query names; "": none.
func lastEvent(c *gin.Context) string {
	if after := c.GetHeader("Last-Event-ID"); after != "" {
		return after
	}
	return c.Query("after")
}

// eventReader reads a stream of events. Next returns none if nothing came within timeout, and io.EOF at the end.
type eventReader interface {
	Next(ctx context.Context, timeout time.Duration) ([]wire.Event, error)
	Close()
}

// sendEvents answers with all events of a reader, and closes it. An error means that the reader has failed; that the caller has left is none.
func (s *Server) sendEvents(c *gin.Context, reader eventReader, comment string) error {
	defer reader.Close()
	stream, err := rest.OpenEventStream(c, comment)
	if err != nil {
		return nil // the caller has left
	}
	ctx := c.Request.Context()
	for {
		events, err := reader.Next(ctx, s.cfg.Heartbeat)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(events); err != nil {
			return nil // the caller has left
		}
		budget.Keep(ctx, 0) // what is sent is not held
	}
}
