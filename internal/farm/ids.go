package farm

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"
)

// Prefixes of ids.
const (
	SandboxPrefix  = "sbx_"
	JobPrefix      = "job_"
	ArtifactPrefix = "art_"
	WorkerPrefix   = "wrk_"
	NodePrefix     = "node_"
	RequestPrefix  = "req_"
	KeyPrefix      = "key_"
	AuditPrefix    = "aud_"
	ProcessPrefix  = "prc_"
	WatchPrefix    = "wat_"
)

// idBytes is 128 bits: ids cannot be guessed, so they may appear in links and logs of the owner.
const idBytes = 16

// idText is the length of an id after its prefix: 26 characters of base32.
const idText = 26

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID makes an id: the prefix and 128 random bits.
func NewID(prefix string) string {
	var b [idBytes]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process when the system has no randomness
	return prefix + idEncoding.EncodeToString(b[:])
}

// DerivedID makes the same id from the same parts. It is as hard to guess as the parts, one of which must be a secret or a random id.
func DerivedID(prefix string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return prefix + idEncoding.EncodeToString(sum[:idBytes])
}

// UUIDOf writes the random part of an id with this prefix as a UUID, for protocols that know no other ids; "" if it is no such id.
func UUIDOf(prefix, id string) string {
	if !ValidID(prefix, id) {
		return ""
	}
	raw, _ := idEncoding.DecodeString(strings.TrimPrefix(id, prefix)) // ValidID has decoded it
	text := hex.EncodeToString(raw)
	return strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-")
}

// FromUUID is the reverse of UUIDOf; "" if the text is not what that writes.
func FromUUID(prefix, uuid string) string {
	raw, err := hex.DecodeString(strings.ReplaceAll(uuid, "-", ""))
	if err != nil || len(raw) != idBytes {
		return ""
	}
	id := prefix + idEncoding.EncodeToString(raw)
	if UUIDOf(prefix, id) != strings.ToLower(uuid) {
		return ""
	}
	return id
}

// pathBytes is 80 bits: no two of the files of one job have the same id.
const pathBytes = 10

// pathText is the length of pathBytes in base32.
const pathText = 16

// ArtifactID is the id of the artifact that a job makes of a path: the random part of the job's id, and a hash of the path. Repeated work
// names its artifacts alike, and the id leads to the job whose manifest has the artifact.
func ArtifactID(job, path string) string {
	sum := sha256.Sum256([]byte(path))
	return ArtifactPrefix + strings.TrimPrefix(job, JobPrefix) + idEncoding.EncodeToString(sum[:pathBytes])
}

// ArtifactJob is the id of the job that made an artifact; "" if this is not the id of an artifact.
func ArtifactJob(artifact string) string {
	rest, ok := strings.CutPrefix(artifact, ArtifactPrefix)
	if !ok || len(rest) != idText+pathText || !encoded(rest[:idText]) || !encoded(rest[idText:]) {
		return ""
	}
	return JobPrefix + rest[:idText]
}

// ValidID reports whether s has the form of an id with this prefix.
func ValidID(prefix, s string) bool {
	if prefix == ArtifactPrefix {
		return ArtifactJob(s) != ""
	}
	rest, ok := strings.CutPrefix(s, prefix)
	return ok && len(rest) == idText && encoded(rest)
}

// encoded reports whether idEncoding writes a text: the decoder skips line breaks and ignores spare bits.
func encoded(text string) bool {
	raw, err := idEncoding.DecodeString(text)
	return err == nil && idEncoding.EncodeToString(raw) == text
}

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

// OwnerOf reads the job or the sandbox from the key of an object below RecordsPrefix or StagingPrefix; the zero Ref if it has another form.
func OwnerOf(key string) Ref {
	parts := strings.SplitN(key, "/", 4)
	if len(parts) < 4 || parts[0]+"/" != RecordsPrefix && parts[0]+"/" != StagingPrefix {
		return Ref{}
	}
	return Ref{Tenant: parts[1], ID: parts[2]}
}

// SnapshotsOf begins the keys of the snapshots of a running job.
func SnapshotsOf(job Ref) string { return RecordsOf(job) + "snapshot-" }

// StagingOf begins the keys of what a job has staged.
func StagingOf(job Ref) string { return StagingPrefix + job.Tenant + "/" + job.ID + "/" }
