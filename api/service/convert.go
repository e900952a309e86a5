package service

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// limitsOf converts the limits. A test checks that both types have the same JSON.
func limitsOf(l farm.Limits) wire.Limits {
	var out wire.Limits
	if text, err := json.Marshal(l); err == nil {
		_ = json.Unmarshal(text, &out)
	}
	return out
}

func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// emptyIfNil makes nil an empty list, so that JSON has [] and not null.
func emptyIfNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func sandboxOf(b *farm.Sandbox) wire.Sandbox {
	out := wire.Sandbox{
		ID: b.ID, Name: b.Spec.Name, State: string(b.State), Reason: b.Reason, Image: b.Spec.Image,
		Network: string(b.Spec.Network), Runtime: cmp.Or(b.Runtime, b.Spec.Runtime), Resources: wire.Resources(b.Spec.Resources), Labels: b.Spec.Labels,
		Generation: max(b.Generation, 1), EnvNames: slices.Sorted(maps.Keys(b.Spec.Env)),
		CreatedAt: b.CreatedAt.UTC(), ExpiresAt: b.ExpiresAt.UTC(), LastUsedAt: b.LastUsedAt.UTC(), ClosedAt: instant(b.ClosedAt),
		TTLSeconds: b.Spec.TTLSeconds, IdleSeconds: b.Spec.IdleSeconds, OnIdle: cmp.Or(string(b.Spec.OnIdle), onIdleClose), OneShot: b.OneShot,
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	out.EnvNames, out.AllowHosts = emptyIfNil(out.EnvNames), emptyIfNil(b.Spec.AllowHosts)
	out.Secrets = emptyIfNil(secretNames(b.Spec.Secrets))
	out.Usage = make([]wire.UseSample, len(b.Recent))
	for i, one := range b.Recent {
		out.Usage[i] = wire.UseSample(one)
	}
	if b.Spec.GPU != nil && b.Spec.GPU.Count > 0 {
		out.GPU = &wire.GPU{Count: b.Spec.GPU.Count, Model: b.Spec.GPU.Model}
	}
	return out
}

// job converts a job. It reads what a queued job waits for, and makes links for artifacts.
func (s *Service) job(ctx context.Context, j *farm.Job) wire.Job {
	out := s.shownJob(ctx, j)
	if j.State == farm.JobQueued {
		out.Position, out.EstimateSeconds, out.Waiting = s.place(ctx, j)
	}
	return out
}

// shownJob is job without what a queued job waits for.
func (s *Service) shownJob(ctx context.Context, j *farm.Job) wire.Job {
	out := wire.Job{
		ID: j.ID, Kind: string(j.Kind), SandboxID: j.SandboxID, State: string(j.State), Attempt: j.Attempt - j.GracefulRequeues,
		CreatedAt: j.CreatedAt.UTC(), StartedAt: instant(j.StartedAt), FinishedAt: instant(j.FinishedAt),
		Timings: wire.Timings(j.Timings), Request: jobSpec(j), Result: s.result(ctx, j),
		Links: wire.Links{Self: "/v1/jobs/" + j.ID, Events: "/v1/jobs/" + j.ID + "/events", Cancel: "/v1/jobs/" + j.ID, Request: "/v1/jobs/" + j.ID + "/request"},
	}
	out.Error = jobError(j)
	if j.Outcome != "" {
		out.Outcome = new(string(j.Outcome))
	}
	return out
}

// jobError says why a job did not complete; nil: it did, or it has not ended.
func jobError(j *farm.Job) *wire.JobError {
	switch {
	case j.Error != nil:
		return &wire.JobError{Code: string(j.Error.Code), Message: j.Error.Message}
	case j.State == farm.JobTimedOut:
		return &wire.JobError{Code: string(farm.CodeConflict), Message: fmt.Sprintf("The job was stopped after its timeout of %s; output and files until then are kept. timeout_seconds sets a longer timeout.", farm.Plural(j.TimeoutSeconds, "second"))}
	case j.State == farm.JobCanceled && j.StartedAt.IsZero():
		return &wire.JobError{Code: string(farm.CodeConflict), Message: "The job was canceled before it began."}
	case j.State == farm.JobCanceled:
		return &wire.JobError{Code: string(farm.CodeConflict), Message: "The job was canceled; output and files until then are kept."}
	default:
		return nil
	}
}

func (s *Service) result(ctx context.Context, j *farm.Job) *wire.Result {
	r := s.remaining(ctx, j)
	switch {
	case r == nil:
		return nil
	case r.Execute != nil:
		return &wire.Result{Execute: s.executeResult(ctx, r)}
	case r.Command != nil:
		return &wire.Result{Command: s.commandResult(ctx, r)}
	case r.Install != nil:
		return &wire.Result{Install: s.installResult(ctx, r)}
	case r.File != nil:
		return &wire.Result{File: &wire.FileResult{Entries: entriesOf(r.File.Entries), Notes: emptyIfNil(r.Notes)}}
	default:
		return &wire.Result{Note: &wire.NoteResult{Notes: emptyIfNil(r.Notes)}}
	}
}

func (s *Service) executeResult(ctx context.Context, r *farm.Result) *wire.ExecuteResult {
	e := r.Execute
	out := &wire.ExecuteResult{
		Stdout: e.Stdout, Stderr: e.Stderr, ExitCode: e.ExitCode, ExecutionCount: e.ExecutionCount,
		Truncated: wire.Truncated(e.Truncated), DroppedBytes: wire.DroppedBytes(e.Dropped), KernelRestarted: e.Restarted, FreshProcess: e.FreshProcess,
		Results: make([]wire.Rich, len(e.Rich)), Artifacts: s.artifacts(ctx, r.Artifacts),
		ArtifactsSkipped: r.ArtifactsSkipped, Installed: outcomesOf(e.Installed), Notes: emptyIfNil(r.Notes),
	}
	if e.Error != nil {
		out.Error = &wire.CodeError{Name: e.Error.Name, Value: e.Error.Value, Traceback: emptyIfNil(e.Error.Traceback)}
	}
	for i, rich := range e.Rich {
		out.Results[i] = s.rich(ctx, rich)
	}
	return out
}

func (s *Service) commandResult(ctx context.Context, r *farm.Result) *wire.CommandResult {
	out := &wire.CommandResult{
		Results: make([]wire.CommandOutcome, len(r.Command.Commands)), Artifacts: s.artifacts(ctx, r.Artifacts),
		ArtifactsSkipped: r.ArtifactsSkipped, Installed: outcomesOf(r.Command.Installed), Notes: emptyIfNil(r.Notes),
	}
	for i, c := range r.Command.Commands {
		out.Results[i] = wire.CommandOutcome{
			Command: c.Command, ExitCode: c.ExitCode, Stdout: c.Stdout, Stderr: c.Stderr,
			Truncated: wire.Truncated(c.Truncated), DroppedBytes: wire.DroppedBytes(c.Dropped), DurationMS: c.DurationMS,
		}
	}
	return out
}

func (s *Service) installResult(ctx context.Context, r *farm.Result) *wire.InstallResult {
	return &wire.InstallResult{
		Packages: outcomesOf(r.Install.Packages), Stdout: r.Install.Stdout, Stderr: r.Install.Stderr,
		Truncated: wire.Truncated(r.Install.Truncated), DroppedBytes: wire.DroppedBytes(r.Install.Dropped), Artifacts: s.artifacts(ctx, r.Artifacts), Notes: emptyIfNil(r.Notes),
	}
}

func outcomesOf(list []farm.PackageOutcome) []wire.InstalledOne {
	out := make([]wire.InstalledOne, len(list))
	for i, p := range list {
		out[i] = wire.InstalledOne{Name: p.Name, Requested: p.Requested, Version: p.Version, Status: string(p.Status), Message: p.Message, Why: p.Why}
	}
	return out
}

func (s *Service) rich(ctx context.Context, r farm.RichResult) wire.Rich {
	out := wire.Rich{Display: r.Display, Mime: r.Mime, Data: r.Data, DisplayID: r.DisplayID, Metadata: r.Metadata, Result: r.Result}
	if r.Artifact != nil {
		out.ArtifactID = r.Artifact.ID
		if r.Artifact.Key != "" {
			out.URL = s.link(ctx, r.Artifact)
		}
	}
	return out
}

func entriesOf(entries []farm.FileEntry) []wire.FileEntry {
	out := make([]wire.FileEntry, len(entries))
	for i, e := range entries {
		out[i] = wire.FileEntry{Path: e.Path, Size: e.Size, Mode: e.Mode, ModifiedAt: e.ModifiedAt.UTC(), Type: e.Type}
	}
	return out
}

func (s *Service) artifacts(ctx context.Context, list []farm.Artifact) []wire.Artifact {
	out := make([]wire.Artifact, len(list))
	for i := range list {
		out[i] = s.artifact(ctx, &list[i])
	}
	return out
}

func (s *Service) artifact(ctx context.Context, a *farm.Artifact) wire.Artifact {
	return wire.Artifact{
		ID: a.ID, SandboxID: a.SandboxID, JobID: a.JobID, Name: a.Name, Path: a.Path, Size: a.Size, ContentType: a.ContentType,
		SHA256: a.SHA256, CreatedAt: a.CreatedAt.UTC(), ExpiresAt: a.ExpiresAt.UTC(), URL: s.link(ctx, a),
	}
}

// linkWork is the size of work for budget.Core that takes as long as a link: a job has up to 10,000 artifacts, and a link takes some 50 µs.
const linkWork = 8 << 10

// link presigns a link to an artifact, on a core of the tenant (see budget.Core). It asks the object store nothing, so it works while that is down; on an
// error, such as that the key of links could not be read yet, and if the request has ended, the link is left out.
func (s *Service) link(ctx context.Context, a *farm.Artifact) string {
	leave, err := budget.Core(ctx, linkWork)
	if err != nil {
		return ""
	}
	defer leave()
	url, err := s.Blobs.Presign(ctx, a.Key, blob.PresignOptions{
		Expiry: s.linkLife(), Filename: a.Name, ContentType: a.ContentType, Inline: true,
	})
	if err != nil {
		s.Logger.ErrorContext(ctx, "artifact has no link", slog.String("artifact_id", a.ID), slog.Any("error", err))
	}
	return url
}

func (s *Service) linkLife() time.Duration { return time.Duration(s.limits.LinkSeconds) * time.Second }
