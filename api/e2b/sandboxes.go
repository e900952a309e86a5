package e2b

import (
	"context"
	"crypto/sha256"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// envdVersion is what the SDKs take the data plane for. They use only what this version of envd has.
const envdVersion = "0.6.13"

// clientID is a field of E2B's answers that means nothing any more.
const clientID = "sandfarm"

const (
	// createWait is how long a create waits until its sandbox is ready. The SDKs wait a minute for the answer.
	createWait = 50 * time.Second
	// changeWait is how long a pause and a resume wait until they are done.
	changeWait = 50 * time.Second
	// undoTimeout bounds the close of a sandbox for which its caller does not wait any more.
	undoTimeout = 10 * time.Second
)

// Create makes a sandbox and waits until it is ready. old is the route before /v2.
func (d *Gateway) Create(old bool) func(*gin.Context) error {
	standard := defaultTimeout
	if old {
		standard = defaultTimeoutOld
	}
	return func(c *gin.Context) error {
		var r createRequest
		text, err := d.bind(c, &r)
		if err != nil {
			return err
		}
		want, err := r.create(standard, d.Service.Bounds())
		if err != nil {
			return err
		}
		call := service.Call{Tenant: rest.Tenant(c), Wait: createWait, Key: c.GetHeader("Idempotency-Key"), Route: "POST " + c.FullPath(), Body: sha256.Sum256(text)}
		out, err := d.Service.CreateSandbox(c.Request.Context(), call, want)
		if err != nil {
			return err
		}
		if out.Job.State != string(farm.JobCompleted) {
			c.Header(headerRetry, "false") // the SDKs would make another one
			return d.giveUp(c.Request.Context(), call, out)
		}
		return d.answer(c, http.StatusCreated, *out.Sandbox)
	}
}

// giveUp closes a sandbox that is not ready in time, and says why.
func (d *Gateway) giveUp(ctx context.Context, call service.Call, out service.Outcome) error {
	if out.Job.Final() {
		if out.Job.Error != nil {
			return farm.Errorf(farm.Code(out.Job.Error.Code), "%s", out.Job.Error.Message)
		}
		return farm.Errorf(farm.CodeUnavailable, "The sandbox was not made: its job is %s.", out.Job.State)
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer done()
	if _, err := d.Service.CloseSandbox(ctx, service.Call{Tenant: call.Tenant}, out.Sandbox.ID); err != nil {
		return err
	}
	return farm.Errorf(farm.CodeExhausted, "The farm had no room for the sandbox within %d seconds. Try again later.", int(createWait.Seconds()))
}

// answer answers with what an SDK needs to use a sandbox.
func (d *Gateway) answer(c *gin.Context, status int, s wire.Sandbox) error {
	out := madeSandbox{TemplateID: s.Image, SandboxID: ShownID(s.ID), Alias: s.Image, ClientID: clientID, EnvdVersion: envdVersion, Domain: d.Domain(c.Request)}
	box := Box{Tenant: rest.Tenant(c), ID: s.ID, Key: rest.Caller(c).KeyID}
	var err error
	if out.Access, err = d.token(c.Request.Context(), accessToken, box); err != nil {
		return err
	}
	if out.Traffic, err = d.token(c.Request.Context(), trafficToken, box); err != nil {
		return err
	}
	return rest.Reply(c, status, out)
}

// open reads a sandbox that has not ended: to the SDKs there is no other one.
func (d *Gateway) open(c *gin.Context) (wire.Sandbox, error) {
	shown := c.Param("id")
	s, err := d.Service.Sandbox(c.Request.Context(), rest.Tenant(c), SandboxID(shown))
	if farm.CodeOf(err) == farm.CodeNotFound || err == nil && !farm.SandboxState(s.State).Accepts() {
		return s, farm.NotFoundf("There is no sandbox %q.", farm.Shorten(shown))
	}
	return s, err
}

// Info reads a sandbox.
func (d *Gateway) Info(c *gin.Context) error {
	s, err := d.open(c)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, d.show(c, s))
}

func (d *Gateway) show(c *gin.Context, s wire.Sandbox) shownSandbox {
	out := shownSandbox{
		TemplateID: s.Image, SandboxID: ShownID(s.ID), Alias: s.Image, ClientID: clientID, StartedAt: s.CreatedAt, EndAt: s.ExpiresAt, EnvdVersion: envdVersion,
		CPUCount: int(math.Ceil(s.Resources.CPUs)), MemoryMB: s.Resources.MemoryMB, DiskSizeMB: s.Resources.DiskMB, State: stateRunning, Metadata: s.Labels, Domain: d.Domain(c.Request),
	}
	if s.State == string(farm.SandboxHibernated) {
		out.State = statePaused
	}
	return out
}

// Kill closes a sandbox. From the answer on it is gone to the SDKs; its container ends a moment later.
func (d *Gateway) Kill(c *gin.Context) error {
	s, err := d.open(c)
	if err != nil {
		return err
	}
	if _, err := d.Service.CloseSandbox(c.Request.Context(), service.Call{Tenant: rest.Tenant(c)}, s.ID); err != nil {
		return err
	}
	return rest.NoContent(c)
}

// Timeout sets how long a sandbox lives from now on. 0 ends it.
func (d *Gateway) Timeout(c *gin.Context) error {
	var r timeoutRequest
	if _, err := d.bind(c, &r); err != nil {
		return err
	}
	if r.Timeout == nil {
		return rest.BadRequestf("timeout is missing: how many seconds the sandbox lives from now on.")
	}
	life, err := seconds(*r.Timeout, d.Service.Bounds())
	if err != nil {
		return err
	}
	s, err := d.open(c)
	if err != nil {
		return err
	}
	if *r.Timeout == 0 {
		if _, err = d.Service.CloseSandbox(c.Request.Context(), service.Call{Tenant: rest.Tenant(c)}, s.ID); err != nil {
			return err
		}
		return rest.NoContent(c)
	}
	if _, err = d.setLife(c, s, life); err != nil {
		return err
	}
	return rest.NoContent(c)
}

// setLife sets how long a sandbox lives from now on; one that is to be paused then (autoPause), how long it may be idle.
func (d *Gateway) setLife(c *gin.Context, s wire.Sandbox, life int) (wire.Sandbox, error) {
	change := wire.UpdateRequest{TTLSeconds: &life}
	if s.OnIdle == string(farm.OnIdleHibernate) {
		change = wire.UpdateRequest{IdleSeconds: &life}
	}
	return d.Service.UpdateSandbox(c.Request.Context(), service.Call{Tenant: rest.Tenant(c)}, s.ID, change)
}

// Connect answers with what an SDK needs to use a sandbox, lets it live longer if it would end before, and resumes it if it is paused.
func (d *Gateway) Connect(c *gin.Context) error {
	var r timeoutRequest
	if _, err := d.bind(c, &r); err != nil {
		return err
	}
	timeout := defaultTimeout
	if r.Timeout != nil {
		timeout = *r.Timeout
	}
	life, err := seconds(timeout, d.Service.Bounds())
	if err != nil {
		return err
	}
	s, err := d.open(c)
	if err != nil {
		return err
	}
	longer := d.Now().Add(time.Duration(life) * time.Second).After(s.ExpiresAt)
	if s.OnIdle == string(farm.OnIdleHibernate) {
		longer = life > s.IdleSeconds
	}
	if longer {
		if s, err = d.setLife(c, s, life); err != nil {
			return err
		}
	}
	status := http.StatusOK
	if s.State == string(farm.SandboxHibernated) {
		status = http.StatusCreated
		if err := d.hibernateOrResume(c, farm.KindResume, s.ID); err != nil {
			return err
		}
	}
	return d.answer(c, status, s)
}

// Pause hibernates a sandbox. 409 tells the SDKs that it is paused already, so nothing else may be 409.
func (d *Gateway) Pause(c *gin.Context) error {
	s, err := d.open(c)
	if err != nil {
		return err
	}
	if s.State == string(farm.SandboxHibernated) {
		return rest.Reply(c, http.StatusConflict, failure{http.StatusConflict, "The sandbox is paused already."})
	}
	if err := d.hibernateOrResume(c, farm.KindHibernate, s.ID); err != nil {
		return err
	}
	return rest.NoContent(c)
}

// hibernateOrResume hibernates or resumes a sandbox, and waits for it.
func (d *Gateway) hibernateOrResume(c *gin.Context, kind farm.JobKind, id string) error {
	out, err := d.Service.HibernateOrResume(c.Request.Context(), service.Call{Tenant: rest.Tenant(c), Wait: changeWait}, kind, id, wire.HibernateRequest{})
	switch {
	case err != nil:
		return err
	case !out.Job.Final():
		return rest.BadRequestf("The sandbox is busy: its jobs before have not ended within %d seconds. It will %s after them.", int(changeWait.Seconds()), kind)
	case out.Job.State != string(farm.JobCompleted) && out.Job.Error != nil:
		return farm.Errorf(farm.Code(out.Job.Error.Code), "%s", out.Job.Error.Message)
	case out.Job.State != string(farm.JobCompleted):
		return rest.BadRequestf("The sandbox did not %s: the job is %s.", kind, out.Job.State)
	}
	return nil
}

// The states of sandboxes that the SDKs know.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

const (
	// listMax is how many sandboxes one page has at most, and by default.
	listMax = 100
	// listReads is how many pages of the farm are read for one that would be empty otherwise, and once more to learn whether there is a next one.
	listReads = 10
)

// headerNext has what leads to the next page; a last page has none.
const headerNext = "X-Next-Token"

// List lists the sandboxes of the tenant that have not ended. A page says that there is a next one only if that has something, or if more
// records were looked at than one call looks at.
func (d *Gateway) List(c *gin.Context) error {
	q, template, err := listQuery(c)
	if err != nil {
		return err
	}
	read := func() ([]shownSandbox, error) {
		list, err := d.Service.Sandboxes(c.Request.Context(), rest.Tenant(c), q)
		q.Page.Cursor = string(list.NextCursor)
		shown := []shownSandbox{}
		for _, s := range list.Items {
			if template == "" || s.Image == template {
				shown = append(shown, d.show(c, s))
			}
		}
		return shown, err
	}
	out, err := read()
	for n := 1; n < listReads && err == nil && len(out) == 0 && q.Page.Cursor != ""; n++ {
		out, err = read()
	}
	if err == nil && q.Page.Cursor != "" {
		c.Header(headerNext, q.Page.Cursor)
		q.Page.Limit = 1
		var next []shownSandbox
		if next, err = read(); len(next) == 0 && q.Page.Cursor == "" {
			c.Writer.Header().Del(headerNext)
		}
	}
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, out)
}

// listQuery reads the query of a list.
func listQuery(c *gin.Context) (q service.SandboxQuery, template string, err error) {
	if q.Labels, err = metadata(c.Query("metadata")); err != nil {
		return q, "", err
	}
	if q.States, err = states(rest.List(c, "state")); err != nil {
		return q, "", err
	}
	if after := c.Query("startedAfter"); after != "" {
		if q.Created.After, err = time.Parse(time.RFC3339Nano, after); err != nil {
			return q, "", rest.BadRequestf("startedAfter is not a time (RFC 3339).")
		}
	}
	order := c.Query("order")
	if order != "" && order != "desc" && order != "asc" {
		return q, "", rest.BadRequestf("order is %q; it is asc, from the oldest, or desc.", farm.Shorten(order))
	}
	limit, err := rest.Limit(c, listMax, listMax)
	if err != nil {
		return q, "", err
	}
	q.Page = store.Page{Limit: limit, Cursor: c.Query("nextToken"), Oldest: order == "asc"}
	if template = c.Query("template"); slices.Contains(images, template) {
		template = defaultImage
	}
	return q, template, nil
}

// states are those of the farm that states of E2B stand for.
func states(given []string) ([]string, error) {
	if len(given) == 0 {
		given = []string{stateRunning, statePaused}
	}
	var out []string
	for _, state := range given {
		switch state {
		case stateRunning:
			for _, s := range farm.SandboxStates() {
				if s.Accepts() && s != farm.SandboxHibernated {
					out = append(out, string(s))
				}
			}
		case statePaused:
			out = append(out, string(farm.SandboxHibernated))
		default:
			return nil, rest.BadRequestf("state %q is not known: it is running or paused.", farm.Shorten(state))
		}
	}
	return out, nil
}

// metadata reads a filter. Keys and values are escaped once, the pairs once more, and the query escapes the whole.
func metadata(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil // no filter is not an error
	}
	out := map[string]string{}
	for pair := range strings.SplitSeq(text, "&") {
		key, value, ok := strings.Cut(pair, "=")
		for _, part := range []*string{&key, &value} {
			for range 2 {
				plain, err := url.QueryUnescape(*part)
				if err != nil {
					ok = false
					break
				}
				*part = plain
			}
		}
		if !ok || key == "" {
			return nil, rest.BadRequestf("metadata is not a list of key=value, escaped as the SDKs do.")
		}
		out[key] = value
	}
	return out, nil
}

// defaultImage is the image of a create that names none, as service.Service has it.
const defaultImage = "python"
