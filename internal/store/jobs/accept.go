package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/store/sandboxes"
	"github.com/sandfarm/sandfarm/internal/store/tenants"
)

// Accept is a job to be accepted.
type Accept struct {
	Job         *farm.Job // without its state; SandboxID names an existing sandbox, or Sandbox
	Request     *farm.Request
	Whole       *farm.Request // the request as callers may see it, if Job.Redacted is only its beginning; see WholeRequest
	Sandbox     *farm.Sandbox // create, run: the new sandbox, written in the same step; with its node if it comes from the pool
	Secrets     []byte        // sealed secrets of the new sandbox; nil: it has none
	Idempotency *Idempotency  // nil: none
	Packages    []string      // names that the job installs, normalized by farm.NormalPackage; see PackageJobs
}

// Accept stores a job in one step: it checks idempotency, the state of the sandbox and the limits, then writes the record, its first event
// and its place in the FIFO, and enqueues it if it is runnable. A refused job leaves nothing behind. Errors: CodeNotFound (no such sandbox),
// CodeConflict (state of the sandbox, key used for another request), CodeExhausted (limits and quotas), CodeUnavailable.
func (s *Store) Accept(ctx context.Context, a Accept) (Accepted, error) {
	job := *a.Job
	if err := s.checkAccept(&job, a.Sandbox); err != nil {
		return Accepted{}, err
	}
	maxMemory, err := tenants.CheckMemory(ctx, s.DB, job.Kind)
	if err != nil {
		return Accepted{}, err
	}
	if err := s.RememberTenant(ctx, job.Tenant); err != nil {
		return Accepted{}, err
	}
	if a.Sandbox != nil {
		if err := s.RememberOnNode(ctx, a.Sandbox.Node, job.Tenant); err != nil {
			return Accepted{}, err
		}
	}
	leave, err := budget.Core(ctx, requestBytes(a.Request))
	if err != nil {
		return Accepted{}, err
	}
	args, whole, err := s.acceptArgs(&job, a)
	leave()
	if err != nil {
		return Accepted{}, err
	}
	args.MaxMemory = maxMemory
	docs := s.largeParts(&args, whole, job.Tenant)
	if err := s.put(ctx, docs); err != nil {
		return Accepted{}, err
	}
	r, err := s.RunConfirmed(ctx, "accept job", "job_accept", job.Tenant, args)
	if err != nil {
		return Accepted{}, err // the job may be stored, so its documents stay
	}
	if r.Text(0) != "ok" {
		s.drop(ctx, docs)
		return Accepted{}, s.refused(r, &job, maxMemory)
	}
	out := Accepted{Existing: r.Text(1) == "1"}
	if out.Existing {
		s.drop(ctx, docs)
	}
	if fields := r.Fields(2); len(fields) == 0 {
		job.State = farm.JobQueued
		out.Job = &job
	} else {
		if db.IsReference(fields["shown"]) && !out.Existing {
			fields["shown"] = "" // the caller has it
		}
		if out.Job, err = s.readJob(ctx, fields); err != nil {
			return Accepted{}, err
		}
		if !out.Existing {
			out.Job.Redacted = job.Redacted
		}
	}
	if fields := r.Fields(3); len(fields) > 0 {
		if out.Sandbox, err = sandboxes.Known(ctx, s.DB, fields); err != nil {
			return Accepted{}, err
		}
	}
	return out, nil
}

// Idempotency makes a repeated call find the job of the first one.
type Idempotency struct {
	Key         string
	Fingerprint string // hash of the request: another one under the same key is a conflict
}

// Accepted is a job that is stored durably.
type Accepted struct {
	Job      *farm.Job
	Sandbox  *farm.Sandbox // the job's; nil if its record or its document is gone
	Existing bool          // an earlier job answers this call: the same idempotency key, or a close, interrupt or restart like it
}

// checkAccept refuses what would make a broken record: a bug of ours, not a mistake of the caller.
func (s *Store) checkAccept(job *farm.Job, box *farm.Sandbox) error {
	switch {
	case job.ID == "" || job.Tenant == "" || job.Kind == "" || job.SandboxID == "":
		return fmt.Errorf("accept job %q of tenant %q: id, tenant, kind and sandbox are needed", job.ID, job.Tenant)
	case strings.ContainsAny(job.Tenant, "{}:/"):
		return farm.Invalidf("the name of the tenant must not contain any of {}:/")
	case box != nil && (box.ID != job.SandboxID || box.Tenant != job.Tenant):
		return fmt.Errorf("accept job %s: its sandbox is %s, not %s", job.ID, job.SandboxID, box.ID)
	case box != nil && job.Inline:
		return fmt.Errorf("accept job %s: a job that creates its sandbox must not be inline", job.ID)
	}
	if job.CreatedAt.IsZero() {
		job.CreatedAt = s.Now()
	}
	job.CreatedAt = job.CreatedAt.UTC().Truncate(time.Microsecond)
	return nil
}

// acceptArgs are the arguments of job_accept.lua. Adding a field to a job or a sandbox needs nothing here: Doc and SandboxDoc are whole. What
// scripts read or change later is a field of its own.
type acceptArgs struct {
	ID             string   `lua:"id"`
	Kind           string   `lua:"kind"`
	Sandbox        string   `lua:"sandbox"`
	New            bool     `lua:"new"` // the sandbox is made by this job
	Inline         bool     `lua:"inline"`
	Hidden         bool     `lua:"hidden"`
	Callback       bool     `lua:"callback"`
	Background     bool     `lua:"background"`
	Created        string   `lua:"created"` // microseconds, as Expires
	Queue          string   `lua:"queue"`
	Timeout        int      `lua:"timeout"`
	Cell           string   `lua:"cell"` // see cellField
	Doc            []byte   `lua:"doc"`
	Redacted       []byte   `lua:"shown"` // reference to the document, if Doc is without it
	Request        []byte   `lua:"request"`
	Documents      string   `lua:"documents"`    // see docs in job_finish.lua
	RequestSize    int      `lua:"request_size"` // bytes of the request, if it is a document
	Packages       []string `lua:"packages"`
	Stop           string   `lua:"stop"`         // of an interrupt or a restart: those alike do the same
	MaxPackages    int      `lua:"max_packages"` // bytes of the names and ids that PackageJobs finds
	Idempotency    string   `lua:"idempotency"`  // hash of the key; empty: none
	Fingerprint    string   `lua:"fingerprint"`
	IdempotencyTTL int      `lua:"idempotency_ttl"` // seconds
	MaxWaiting     int      `lua:"max_waiting"`
	SandboxDoc     []byte   `lua:"sandbox_doc"` // of a new sandbox, like the fields up to Node
	Memory         int      `lua:"memory"`      // MiB
	Millicores     int      `lua:"millicores"`
	GPUs           int      `lua:"gpus"`
	SandboxSpilled bool     `lua:"sandbox_spilled"`
	Secrets        []byte   `lua:"secrets"`
	Expires        string   `lua:"expires"`
	Idle           int      `lua:"idle"` // seconds
	Node           string   `lua:"node"`
	Expired        bool     `lua:"expired"` // of a close, like Reason
	Reason         string   `lua:"reason"`
	MaxMemory      int64    `lua:"max_memory"` // bytes that the tenant's unfinished jobs and open sandboxes may have in Redis; 0: no bound
}

// requestBytes is about how long a request is, where it may be long.
func requestBytes(r *farm.Request) (n int) {
	const entry = 64 // of a list
	if r == nil {
		return 0
	}
	if r.Execute != nil {
		n += len(r.Execute.Code)
	}
	if r.Command != nil {
		for _, command := range r.Command.Commands {
			n += entry + len(command)
		}
	}
	files := r.Files
	if r.File != nil {
		files = r.File.Parts
	}
	for i := range files {
		n += entry + len(files[i].Path) + len(files[i].Content)
	}
	return n
}

// acceptArgs also returns the document of a request that is stored as one, see encodeRequest.
func (s *Store) acceptArgs(job *farm.Job, a Accept) (args acceptArgs, whole []byte, err error) {
	doc, shown, err := encodeJob(job)
	if err != nil {
		return acceptArgs{}, nil, err
	}
	request, visible := a.Request, a.Whole
	if request == nil {
		request = &farm.Request{}
	}
	if s.Documents == nil {
		visible = nil
	}
	body, whole, err := encodeRequest(request, visible)
	if err != nil {
		return acceptArgs{}, nil, err
	}
	args = acceptArgs{
		ID: job.ID, Kind: string(job.Kind), Sandbox: job.SandboxID, New: a.Sandbox != nil, Inline: job.Inline, Hidden: job.Hidden,
		Callback: job.CallbackURL != "", Background: request.Command != nil && request.Command.Background, Created: db.Micros(job.CreatedAt),
		Queue: job.Queue, Timeout: job.TimeoutSeconds, Cell: cellField(job), Doc: doc, Redacted: shown, Request: body, Packages: a.Packages, MaxPackages: sandboxes.PackageBytes, Secrets: a.Secrets,
		IdempotencyTTL: s.Limits.IdempotencySeconds, MaxWaiting: s.Limits.MaxWaiting,
	}
	if job.Kind == farm.KindInterrupt || job.Kind == farm.KindRestart {
		sum := sha256.Sum256([]byte(string(job.Kind) + " " + request.Context + " " + job.CallbackURL))
		args.Stop = hex.EncodeToString(sum[:])
	}
	if a.Idempotency != nil {
		sum := sha256.Sum256([]byte(a.Idempotency.Key))
		args.Idempotency, args.Fingerprint = hex.EncodeToString(sum[:]), a.Idempotency.Fingerprint
	}
	if box := a.Sandbox; box != nil {
		if args.SandboxDoc, err = sandboxes.Encode(box); err != nil {
			return acceptArgs{}, nil, err
		}
		args.Memory, args.Millicores, args.GPUs = sandboxes.Charge(box)
		expires := box.ExpiresAt
		if expires.IsZero() {
			expires = job.CreatedAt.Add(time.Duration(box.Spec.TTLSeconds) * time.Second)
		}
		args.Expires, args.Idle, args.Node = db.Micros(expires), box.Spec.IdleSeconds, box.Node
	}
	if request.Close != nil {
		args.Expired, args.Reason = request.Close.Expired, request.Close.Reason
	}
	return args, whole, nil
}

// refused makes the caller's error of a refusal by the script.
func (s *Store) refused(r db.Reply, job *farm.Job, maxMemory int64) error {
	state := r.Text(1)
	switch r.Text(0) {
	case "notfound":
		return farm.NotFoundf("There is no sandbox %s.", job.SandboxID)
	case "reused":
		return farm.Conflictf("The Idempotency-Key was used for another request (job %s). Use a new key.", r.Text(1))
	case "early":
		if farm.SandboxState(state) == farm.SandboxHibernated {
			return farm.Conflictf("Sandbox %s is hibernated. Resume it first (POST /v1/sandboxes/%s/resume); code, commands and installs resume it by themselves.", job.SandboxID, job.SandboxID)
		}
		return farm.Conflictf("Sandbox %s is not ready yet: it is %s. Wait until it is ready, then try again.", job.SandboxID, state)
	case "quota":
		return farm.QuotaError(farm.QuotaUse{Name: farm.QuotaName(r.Text(1)), Limit: db.Number(r.Text(2)), Used: db.Number(r.Text(3))}, db.Number(r.Text(4)))
	case "memory":
		return tenants.UnfinishedError(maxMemory, db.Number(r.Text(1)), db.Number(r.Text(2)))
	case "deep":
		return farm.Errorf(farm.CodeExhausted, "%d jobs wait in queue %s, the maximum. Try again when some have started.", s.Limits.MaxQueueDepth, state)
	case "stops":
		return farm.Errorf(farm.CodeExhausted, "%d interrupts and restarts of sandbox %s are unfinished, the maximum. Try again when some have finished.", db.MaxStops, job.SandboxID)
	case "waiting":
		return farm.Errorf(farm.CodeExhausted, "%d jobs wait for sandbox %s, the maximum. Try again when some have finished.", s.Limits.MaxWaiting, job.SandboxID)
	case "state":
		return farm.NoMoreWork(job.SandboxID, farm.SandboxState(state), r.Text(2))
	default:
		return fmt.Errorf("accept job: script answered %q", r.Text(0))
	}
}

// Smaller limits of parts of records that stay in Redis together with a result.
const (
	shownBytes   = 8 << 10 // of a job's record with what it shows of its request
	messageBytes = 4 << 10 // of the message of a job's error
)

// What the record of a job says of its documents, in the field docs.
const (
	withRequest   = "r" // its request, or the private part of it, is one; it is removed when the job ends
	withDocuments = "1" // it has others only
)

// documents are objects that one step writes, before the records that refer to them.
type documents struct {
	tenant string
	list   []document
}

type document struct {
	entry string // of the index of documents: the id of the job or of the sandbox
	key   string
	data  []byte
}

// add makes value a reference to a new document of a record if it is longer than limit. It returns how many bytes the document has.
func (d *documents) add(record farm.Ref, name string, value *[]byte, limit int) int {
	size := len(*value)
	if size <= limit {
		return 0
	}
	key := db.DocumentKey(record, name)
	d.list = append(d.list, document{record.ID, key, *value})
	*value = []byte(db.Reference + key)
	return size
}

// largeParts makes documents of the arguments that are too large for Redis. whole is the document of a request of which args.Request is the private part; nil: none.
func (s *Store) largeParts(args *acceptArgs, whole []byte, tenant string) documents {
	docs := documents{tenant: tenant}
	if s.Documents == nil {
		return docs
	}
	job, box := farm.Ref{Tenant: tenant, ID: args.ID}, farm.Ref{Tenant: tenant, ID: args.Sandbox}
	inline := db.InlineBytes
	if whole != nil { // the reference to it is part of the value
		inline -= len(db.Reference) + len(db.DocumentKey(job, wholeDocument)) + len(privateSeparator)
	}
	shown := docs.add(job, "shown", &args.Redacted, 0)
	args.RequestSize = docs.add(job, requestDocument, &args.Request, inline)
	args.SandboxSpilled = docs.add(box, "sandbox", &args.SandboxDoc, sandboxes.DocBytes) > 0
	switch {
	case args.RequestSize > 0:
		args.Documents = withRequest
	case shown > 0, whole != nil:
		args.Documents = withDocuments
	}
	if whole != nil {
		private := args.Request
		docs.add(job, wholeDocument, &whole, 0)
		if args.Request = whole; len(private) > 0 {
			args.Request = slices.Concat(args.Request, []byte(privateSeparator), private)
		}
	}
	return docs
}

// put charges documents to what the tenant may store, and then writes them. Until their records are accepted they are kept like uploads: a process
// that dies leaves them for an hour. CodeExhausted: the storage of the tenant is full.
func (s *Store) put(ctx context.Context, docs documents) error {
	sizes := map[string]int64{}
	for _, doc := range docs.list {
		sizes[doc.entry] += int64(len(doc.data))
	}
	for entry, size := range sizes {
		if err := tenants.Keep(ctx, s.DB, docs.tenant, entry, size); err != nil {
			if len(sizes) > 1 && farm.CodeOf(err) == farm.CodeExhausted {
				s.drop(ctx, docs)
			}
			return err
		}
	}
	for _, doc := range docs.list {
		if err := s.Documents.PutDocument(ctx, doc.key, doc.data); err != nil {
			s.drop(ctx, docs)
			return fmt.Errorf("store document: %w", err)
		}
	}
	return nil
}

// drop removes documents that no record refers to, and what they count.
func (s *Store) drop(ctx context.Context, docs documents) {
	if len(docs.list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), db.DropTimeout)
	defer cancel()
	keys, entries := []string{}, []string{}
	for _, doc := range docs.list {
		keys, entries = append(keys, doc.key), append(entries, doc.entry)
	}
	slices.Sort(entries)
	err := s.Documents.Delete(ctx, keys...)
	for _, entry := range slices.Compact(entries) {
		if err == nil {
			err = tenants.Keep(ctx, s.DB, docs.tenant, entry, 0)
		}
	}
	if err != nil {
		s.Log.WarnContext(ctx, "documents are left for an hour", "first", keys[0], "error", err)
	}
}
