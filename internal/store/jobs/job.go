// Package jobs keeps jobs: their records, requests, events, checkpoints, artifacts and callbacks, the FIFO of each sandbox, the shares of queues, and
// the watches of those who wait.
//
// It needs the other packages. A job that is accepted may make its sandbox, and a claim, a requeue or an end changes its state: its scripts use the prelude of
// package sandboxes. What a job stores is charged to its tenant: they use that of package tenants, whose functions bound what is accepted. A
// claim asks package nodes whether a worker is alive.
package jobs

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/store/nodes"
)

// noJob is the error for an unknown job or another tenant's job.
func noJob(id string) error { return farm.NotFoundf("There is no job %s.", id) }

// Job reads a job; CodeNotFound if it is another tenant's, or gone.
func (s *Store) Job(ctx context.Context, ref farm.Ref) (*farm.Job, error) {
	return s.read(ctx, ref, "")
}

// read is Job without the field that is left out.
func (s *Store) read(ctx context.Context, ref farm.Ref, without string) (*farm.Job, error) {
	fields, err := s.Redis.HGetAll(ctx, s.Key(ref.Tenant, db.KeyJob, ref.ID)).Result()
	if err != nil {
		return nil, db.Wrap("read job", err)
	}
	if len(fields) == 0 {
		return nil, noJob(ref.ID)
	}
	delete(fields, without)
	return s.readJob(ctx, fields)
}

// Reload gives a job as it is now. If the message of its end has come to a watch of its end, that has the answer; else, or without a watch,
// the record is read. What never changes is taken from the job, like what it shows of its request.
func (s *Store) Reload(ctx context.Context, job *farm.Job, w *Watch) (*farm.Job, error) {
	if w != nil {
		if fields := w.ended(); fields != nil {
			now := *job
			now.Result, now.Error = nil, nil
			if err := decodeChanges(&now, fields); err != nil {
				return nil, err
			}
			_, err := s.readDocuments(ctx, &now, map[string]string{"result": fields["result"]})
			return &now, err
		}
	}
	fields, err := s.Redis.HGetAll(ctx, s.Key(job.Tenant, db.KeyJob, job.ID)).Result()
	if err != nil {
		return nil, db.Wrap("read job", err)
	}
	if len(fields) == 0 {
		return nil, noJob(job.ID)
	}
	fields["shown"] = ""
	now, err := s.readJob(ctx, fields)
	if err == nil {
		now.Redacted = job.Redacted
	}
	return now, err
}

// readJob reads a job with its documents from its hash. If an object is lost, what it held is missing in the job.
func (s *Store) readJob(ctx context.Context, fields map[string]string) (*farm.Job, error) {
	job, err := decodeJob(fields)
	if err != nil {
		return nil, err
	}
	_, err = s.readDocuments(ctx, job, fields)
	return job, err
}

// readDocuments adds the documents that the fields refer to to a job. It returns how many bytes they have.
func (s *Store) readDocuments(ctx context.Context, job *farm.Job, fields map[string]string) (size int, err error) {
	if shown := fields["shown"]; shown != "" {
		if size, err = s.ReadDocument(ctx, shown, &job.Redacted); err != nil {
			return 0, fmt.Errorf("read shown request of job %s: %w", job.ID, err)
		}
	}
	if result := fields["result"]; db.IsReference(result) {
		n, err := s.ReadDocument(ctx, result, &job.Result)
		if err != nil {
			return 0, fmt.Errorf("read result of job %s: %w", job.ID, err)
		}
		size += n
	}
	return size, nil
}

// decodeJob reads a job's hash: doc holds what never changes, the other fields hold the rest. Documents are not read, see readJob.
func decodeJob(f map[string]string) (*farm.Job, error) {
	var job farm.Job
	if err := json.Unmarshal([]byte(f["doc"]), &job); err != nil {
		return nil, fmt.Errorf("decode job record: %w", err)
	}
	if err := decodeChanges(&job, f); err != nil {
		return nil, err
	}
	return &job, nil
}

// decodeChanges reads what may change after a job was accepted. Documents are not read.
func decodeChanges(job *farm.Job, f map[string]string) error {
	job.State = farm.JobState(f["state"])
	job.Attempt, _ = strconv.Atoi(f["attempt"])
	job.GracefulRequeues, _ = strconv.Atoi(f["spared"])
	job.Worker, job.ArtifactsGone = f["worker"], f["less"] == "1"
	if queue := f["queue"]; queue != "" { // Requeue may have changed it
		job.Queue = queue
	}
	job.Outcome = farm.JobOutcome(f["outcome"])
	job.StartedAt, job.FinishedAt = db.Moment(f["started"]), db.Moment(f["finished"])
	job.Timings = farm.Timings{QueueMS: db.Number(f["qms"]), RunMS: db.Number(f["rms"]), UploadMS: db.Number(f["ums"])}
	if text := f["result"]; text != "" && !db.IsReference(text) {
		if err := json.Unmarshal([]byte(text), &job.Result); err != nil {
			return fmt.Errorf("decode result of job %s: %w", job.ID, err)
		}
	}
	if text := f["error"]; text != "" {
		if err := json.Unmarshal([]byte(text), &job.Error); err != nil {
			return fmt.Errorf("decode error of job %s: %w", job.ID, err)
		}
	}
	return nil
}

// encodeJob encodes the part of a job that never changes, without what it shows of its request if that is too long: then shown has it.
func encodeJob(job *farm.Job) (doc, shown []byte, err error) {
	kept := *job
	kept.State, kept.Attempt, kept.GracefulRequeues, kept.Worker = "", 0, 0, ""
	kept.StartedAt, kept.FinishedAt, kept.Timings = time.Time{}, time.Time{}, farm.Timings{}
	kept.Result, kept.Error, kept.Outcome, kept.ArtifactsGone = nil, nil, "", false
	if doc, err = db.Encode("job", kept); err != nil || len(doc) <= shownBytes || job.Redacted == nil {
		return doc, nil, err
	}
	kept.Redacted = nil
	if doc, err = db.Encode("job", kept); err != nil {
		return nil, nil, err
	}
	shown, err = db.Encode("shown request", job.Redacted)
	return doc, shown, err
}

// encodeMaybe encodes v; nil is the empty text.
func encodeMaybe[T any](what string, v *T) ([]byte, error) {
	if v == nil {
		return []byte{}, nil
	}
	return db.Encode(what, v)
}

// FIFOHead reads the id of the first job in a sandbox's FIFO; "" if it is empty.
func (s *Store) FIFOHead(ctx context.Context, sandbox farm.Ref) (string, error) {
	id, err := s.Redis.LIndex(ctx, s.Key(sandbox.Tenant, db.KeyFIFO, sandbox.ID), 0).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return id, db.Wrap("read head of FIFO", err)
}

// UnfinishedJobs lists the unfinished jobs of a sandbox in the order they were accepted, also those outside its FIFO.
func (s *Store) UnfinishedJobs(ctx context.Context, sandbox farm.Ref) ([]farm.Ref, error) {
	ids, err := s.Redis.ZRange(ctx, s.Key(sandbox.Tenant, db.KeyUnfinished, sandbox.ID), 0, -1).Result()
	if err != nil {
		return nil, db.Wrap("list unfinished jobs of sandbox", err)
	}
	return db.Refs(sandbox.Tenant, ids), nil
}

// OpenJobs lists the tenant's unfinished jobs, oldest first, at most limit; 0 means all.
func (s *Store) OpenJobs(ctx context.Context, tenant string, limit int) ([]*farm.Job, error) {
	ids, err := s.Redis.ZRange(ctx, s.Index(tenant, db.IndexOpenJobs), 0, int64(limit)-1).Result()
	if err != nil {
		return nil, db.Wrap("list unfinished jobs", err)
	}
	return db.Fetch(ctx, s.DB, tenant, db.KeyJob, ids, s.readJob)
}

// JobStates reads the states of a tenant's jobs. Jobs that are gone are left out.
func (s *Store) JobStates(ctx context.Context, tenant string, ids []string) (map[string]farm.JobState, error) {
	out := make(map[string]farm.JobState, len(ids))
	if len(ids) == 0 {
		return out, nil
	}
	pipe := s.Redis.Pipeline()
	cmds := make(map[string]*redis.StringCmd, len(ids))
	for _, id := range ids {
		if cmds[id] == nil {
			cmds[id] = pipe.HGet(ctx, s.Key(tenant, db.KeyJob, id), "state")
		}
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, db.Wrap("read states of jobs", err)
	}
	for id, cmd := range cmds {
		if cmd.Val() != "" {
			out[id] = farm.JobState(cmd.Val())
		}
	}
	return out, nil
}

//go:embed *.lua
var scripts embed.FS

// Lua has the scripts, for db.New.
func Lua() fs.FS { return scripts }

// Store reads and writes jobs. It is safe for concurrent use.
type Store struct {
	*db.DB
	nodes     *nodes.Store
	hub       *hub
	manifests *manifestCache
	waiting   *waitingTenants
}

// New makes a Store.
func New(d *db.DB) *Store {
	return &Store{
		DB: d, nodes: nodes.New(d), hub: newHub(d.Listen, d.Farm(db.FarmWatch, "")), manifests: newManifestCache(),
		waiting: newWaitingTenants(),
	}
}

// Close ends the watches.
func (s *Store) Close() error { return s.hub.close() }

// A request is stored as JSON, or as a reference to a document of it, which is removed when the job ends. A request of which the job shows
// only the beginning (Accept.Whole) is stored once for both readers: the document whole, which lives as long as the job's record, has its
// code or commands, and the stored value is the reference to it. What callers may not see, such as the values of variables, is private:
// it follows the reference after a newline, in one of the two forms above. It has at most a few hundred KiB.

// Names of the documents of a request.
const (
	requestDocument = "request" // removed when the job ends
	wholeDocument   = "whole"
)

// privateSeparator follows the reference to the document whole. Keys of documents have no newlines.
const privateSeparator = "\n"

// withoutText is a request without its code and commands, which the document whole has.
func withoutText(r *farm.Request) *farm.Request {
	out := *r
	if r.Execute != nil {
		execute := *r.Execute
		execute.Code = ""
		out.Execute = &execute
	}
	if r.Command != nil {
		command := *r.Command
		command.Commands = nil
		out.Command = &command
	}
	return &out
}

// withText is the opposite of withoutText.
func withText(private, whole *farm.Request) *farm.Request {
	if private.Execute != nil && whole.Execute != nil {
		private.Execute.Code = whole.Execute.Code
	}
	if private.Command != nil && whole.Command != nil {
		private.Command.Commands = whole.Command.Commands
	}
	return private
}

// encodeRequest encodes a request, and what callers may see of it if that is a document of its own. Then value is the private part, which
// is empty if callers may see everything.
func encodeRequest(request, shown *farm.Request) (value, whole []byte, err error) {
	if shown == nil {
		value, err = db.Encode("request", request)
		return value, nil, err
	}
	if value, err = db.Encode("request", withoutText(request)); err != nil {
		return nil, nil, err
	}
	public, err := db.Encode("request", withoutText(shown))
	if err != nil {
		return nil, nil, err
	}
	if bytes.Equal(value, public) {
		value = nil
	}
	if shown.Execute == nil && shown.Command == nil { // it has no text: an upload has up to thousands of files
		return value, public, nil
	}
	whole, err = db.Encode("request", shown)
	return value, whole, err
}

// decodeRequest decodes a request, a large one on a core of the tenant of ctx (budget.Core).
func decodeRequest(ctx context.Context, text string) (*farm.Request, error) {
	var request farm.Request
	if text == "" {
		return &request, nil
	}
	leave, err := budget.Core(ctx, len(text))
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := json.Unmarshal([]byte(text), &request); err != nil {
		return nil, fmt.Errorf("decode request: %w", err)
	}
	return &request, nil
}

// readRequest reads a request from its stored value.
func (s *Store) readRequest(ctx context.Context, value string) (*farm.Request, error) {
	value, private, _ := strings.Cut(value, privateSeparator)
	text, err := s.Resolve(ctx, value)
	if err != nil {
		return nil, err
	}
	request, err := decodeRequest(ctx, text)
	if err != nil || private == "" {
		return request, err
	}
	// A second charge could be refused while the first is held.
	if text, err = s.Resolve(budget.Without(ctx), private); err != nil {
		return nil, err
	}
	hidden, err := decodeRequest(ctx, text)
	if err != nil {
		return nil, err
	}
	return withText(hidden, request), nil
}

// Shown reads a job with what it shows of its request, without its result, which may be large. CodeNotFound as for Job.
func (s *Store) Shown(ctx context.Context, ref farm.Ref) (*farm.Job, error) {
	return s.read(ctx, ref, "result")
}

// WholeRequest reads the request of a job that shows only its beginning (farm.Job.Truncated), as callers may see it. CodeNotFound if it is
// not stored.
func (s *Store) WholeRequest(ctx context.Context, job farm.Ref) (*farm.Request, error) {
	text, err := s.Resolve(ctx, db.Reference+db.DocumentKey(job, wholeDocument))
	if err != nil {
		return nil, err
	}
	return decodeRequest(ctx, text)
}
