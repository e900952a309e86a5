package api

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Bounds of the audit in memory.
const (
	auditWaiting = 4096            // entries that wait for Redis, of one tenant at most half of what others leave; more are dropped and counted
	auditBatch   = 256             // entries of one write
	auditTimeout = 5 * time.Second // of one write
	strangers    = time.Second     // between two entries of requests without a valid key, which anybody can send
)

// auditor writes the audit: a line of the log for each entry at once, and the entry to the store in the background.
type auditor struct {
	store interface {
		AppendAudit(ctx context.Context, entries []farm.AuditEntry) error
	}
	log *slog.Logger
	now func() time.Time

	mu       sync.Mutex
	waiting  []farm.AuditEntry
	of       map[string]int // how many of them a tenant has
	missed   int            // entries that were dropped since the last one that was kept
	written  chan struct{}  // closed when nothing waits; nil if nothing is being written
	stranger time.Time      // of the last entry without a tenant
}

// add adds an entry.
func (a *auditor) add(ctx context.Context, e farm.AuditEntry) {
	e.ID, e.At = farm.NewID(farm.AuditPrefix), a.now().UTC()
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.Tenant == "" {
		if e.At.Sub(a.stranger) < strangers {
			a.missed++
			return
		}
		a.stranger = e.At
	}
	a.log.LogAttrs(ctx, slog.LevelInfo, "audit", slog.String("audit_id", e.ID), slog.String("tenant", e.Tenant), slog.String("key_id", e.KeyID),
		slog.String("route", e.Route), slog.String("subject", e.Subject), slog.String("job_id", e.JobID), slog.String("sandbox_id", e.SandboxID),
		slog.String("from", e.From), slog.Int("status", e.Status), slog.String("request_id", e.RequestID))
	if own := a.of[e.Tenant]; own >= (auditWaiting-(len(a.waiting)-own))/2 {
		a.missed++
		return
	}
	e.Missed, a.missed = a.missed, 0
	a.waiting = append(a.waiting, e)
	if a.of == nil {
		a.of = map[string]int{}
	}
	a.of[e.Tenant]++
	if a.written == nil {
		a.written = make(chan struct{})
		go a.write(context.WithoutCancel(ctx))
	}
}

// write writes what waits, until nothing does. What Redis does not take is lost to the store and stays in the log.
func (a *auditor) write(ctx context.Context) {
	for {
		a.mu.Lock()
		batch := a.waiting[:min(len(a.waiting), auditBatch)]
		a.waiting = a.waiting[len(batch):]
		for _, e := range batch {
			a.of[e.Tenant]--
		}
		if len(batch) == 0 {
			close(a.written)
			a.waiting, a.of, a.written = nil, nil, nil
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		bounded, done := context.WithTimeout(ctx, auditTimeout)
		err := a.store.AppendAudit(bounded, batch)
		done()
		if err != nil {
			a.log.WarnContext(ctx, "cannot write the audit", slog.Int("entries", len(batch)), slog.Any("error", err))
			a.mu.Lock()
			a.missed += len(batch)
			a.mu.Unlock()
		}
	}
}

// close waits until everything that was added before is written.
func (a *auditor) close() {
	a.mu.Lock()
	written := a.written
	a.mu.Unlock()
	if written != nil {
		<-written
	}
}

// trail is what the audit says of every job that a request starts. It is in the context of the request.
type trail struct {
	entry farm.AuditEntry
	mu    sync.Mutex
	jobs  int  // that were added
	whole bool // the request itself was added
}

type trailContext struct{}

// itself is the entry of the request itself, for which none is added at its end.
func (t *trail) itself(status int) farm.AuditEntry {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.whole = true
	e := t.entry
	e.Status = status
	return e
}

// follow makes the trail of a request.
func follow(c *gin.Context) *trail {
	caller := rest.Caller(c)
	t := &trail{entry: farm.AuditEntry{
		Tenant: caller.Tenant, KeyID: caller.KeyID, Route: rest.Method(c) + " " + rest.PathTemplate(c), Subject: farm.Shorten(cmp.Or(e2b.SandboxID(c.Param("id")), c.Param("name"))),
		From: cmp.Or(c.RemoteIP(), "local"), RequestID: rest.RequestID(c),
	}}
	c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), trailContext{}, t))
	if process := c.Param("process"); process != "" {
		follows(c, process)
	}
	return t
}

// follows says which process a request is about: it is the subject then, beside its sandbox.
func follows(c *gin.Context, process string) {
	if t, ok := c.Request.Context().Value(trailContext{}).(*trail); ok {
		t.entry.Subject, t.entry.SandboxID = farm.Shorten(process), farm.Shorten(c.Param("id"))
	}
}

// makes says what a request has made, where its path does not name it.
func makes(c *gin.Context, id string) {
	if t, ok := c.Request.Context().Value(trailContext{}).(*trail); ok {
		t.entry.Subject = id
	}
}

// actFor serves a request for a caller whose token it carries, and says so in the audit. subject is what the token is for.
func (s *Server) actFor(c *gin.Context, caller access.Caller, subject string) {
	rest.ActFor(c, caller)
	if t, ok := c.Request.Context().Value(trailContext{}).(*trail); ok {
		t.entry.Tenant, t.entry.KeyID, t.entry.Subject = caller.Tenant, caller.KeyID, farm.Shorten(subject)
	}
}

// accepted counts an accepted job, and adds it to the audit of its request.
func (s *Server) accepted(ctx context.Context, job *farm.Job) {
	s.metrics.accepted.WithLabelValues(string(job.Kind)).Inc()
	t, ok := ctx.Value(trailContext{}).(*trail)
	if !ok || job.Hidden && !s.cfg.AuditReads {
		return
	}
	t.mu.Lock()
	t.jobs++
	t.mu.Unlock()
	e := t.entry
	e.JobID, e.SandboxID, e.Status = job.ID, job.SandboxID, http.StatusAccepted
	s.audit.add(ctx, e)
}

// canceled adds the cancel of a job to the audit. Where the path names the job, the entry of the request says it.
func (s *Server) canceled(ctx context.Context, job *farm.Job) {
	t, ok := ctx.Value(trailContext{}).(*trail)
	if !ok || t.entry.Subject == job.ID {
		return
	}
	e := t.entry
	e.JobID, e.SandboxID, e.Status = job.ID, job.SandboxID, http.StatusOK
	s.audit.add(ctx, e)
}

// used adds what a tool did or was refused without a job to the audit, in place of its request: what came of it is not in the status of the answer.
func (s *Server) used(ctx context.Context, sandboxID, process string, status int) {
	if t, ok := ctx.Value(trailContext{}).(*trail); ok {
		e := t.itself(status)
		e.Subject, e.SandboxID = farm.Shorten(process), farm.Shorten(sandboxID)
		s.audit.add(ctx, e)
	}
}

// opened adds a request that may last for hours to the audit now, and not at its end.
func (s *Server) opened(c *gin.Context) {
	if t, ok := c.Request.Context().Value(trailContext{}).(*trail); ok {
		s.audit.add(c.Request.Context(), t.itself(http.StatusSwitchingProtocols))
	}
}

// ended adds a request to the audit at its end, unless it only reads or its jobs are there already.
func (s *Server) ended(c *gin.Context, r rest.Route, t *trail) {
	status := c.Writer.Status()
	reads := r.Stream || r.Method == http.MethodGet || r.Needs() == farm.ScopeRead || r.Needs() == farm.ScopeMetrics
	own := rest.Status(c) // code in a sandbox writes no refusals
	refused := own == http.StatusUnauthorized || own == http.StatusForbidden
	t.mu.Lock()
	jobs, whole := t.jobs > 0, t.whole
	t.mu.Unlock()
	if whole || !refused && (jobs || reads && !s.cfg.AuditReads) {
		return
	}
	e := t.entry
	e.Status = status
	s.audit.add(c.Request.Context(), e)
}

func (s *Server) auditRoutes() []rest.Route {
	return []rest.Route{{
		Method: "GET", Path: "/v1/audit", Tag: "Keys", Summary: "Read the audit", Scope: farm.ScopeAdmin,
		Detail:  "Who asked for what, from where, and what came of it: changes, jobs and refusals, and reads where api.audit_reads is set. Code, environment and links are not part of it.",
		Query:   append(append(paging(), created()...), rest.Query("tenant", "only of this tenant", object{"type": "string"})),
		Answers: []rest.Answer{{Status: http.StatusOK, Doc: "a page of entries, newest first", Body: wire.List[wire.AuditEntry]{}}}, Handler: s.readAudit,
	}}
}

func (s *Server) readAudit(c *gin.Context) error {
	p, when, err := rest.PageOf(c)
	if err != nil {
		return err
	}
	list, err := s.service.Audit(c.Request.Context(), c.Query("tenant"), when, p)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}
