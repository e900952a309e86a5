package farm

import "strings"

// Prefixes of the keys of the object store. Every object of a farm is below one of them, and below its tenant except in the package index. The policies
// of deploy/compose/minio and the lifecycle rules of the scheduler go by them.
const (
	ArtifactsPrefix = "artifacts/" // tenant/sandbox/job/artifact/name: files that jobs made
	ManifestsPrefix = "manifests/" // tenant/job/version: what the artifacts of a job are, if it has many
	RecordsPrefix   = "records/"   // tenant/job/name: documents, events and snapshots of running jobs, which are too large for Redis
	StagingPrefix   = "staging/"   // tenant/job/name: bytes on their way into or out of a sandbox
	IndexPrefix     = "index/"     // files and pages of the package index, and marks of when they were used
)

// ArtifactsOf begins the keys of the artifacts of a job.
func ArtifactsOf(sandbox string, job Ref) string {
	return ArtifactsPrefix + job.Tenant + "/" + sandbox + "/" + job.ID + "/"
}

// ArtifactObject is the usual key of an artifact whose object has a name.
func ArtifactObject(a *Artifact, name string) string {
	return ArtifactsOf(a.SandboxID, Ref{Tenant: a.Tenant, ID: a.JobID}) + a.ID + "/" + name
}

// JobOfArtifact reads the job from the key of an artifact; the zero Ref if it has another form.
func JobOfArtifact(key string) Ref {
	parts := strings.Split(strings.TrimPrefix(key, ArtifactsPrefix), "/")
	if len(parts) != 5 {
		return Ref{}
	}
	return Ref{Tenant: parts[0], ID: parts[2]}
}

// ManifestObject is the key of a version of a job's manifest.
func ManifestObject(job Ref, version string) string {
	return ManifestsPrefix + job.Tenant + "/" + job.ID + "/" + version
}

// RecordsOf begins the keys of the documents of a job.
func RecordsOf(job Ref) string { return RecordsPrefix + job.Tenant + "/" + job.ID + "/" }

// SnapshotsOf begins the keys of the snapshots of a running job.
func SnapshotsOf(job Ref) string { return RecordsOf(job) + "snapshot-" }

// StagingOf begins the keys of what a job has staged.
func StagingOf(job Ref) string { return StagingPrefix + job.Tenant + "/" + job.ID + "/" }
