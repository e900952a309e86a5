package jobs

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/store/tenants"
)

// manifest is the one record of all artifacts of a job. It lies in Redis or, if it is long, in a document. Entries have numbers that never
// change and that grow: a cursor can name one.
type manifest struct {
	SandboxID string          `json:"sandbox"`
	Next      int64           `json:"next"` // number of the next new entry
	Entries   []manifestEntry `json:"entries"`

	job     farm.Ref
	version string // of what was read; empty: there was none
	place   int64  // in the indexes: the jobs in the order of their first artifacts
	value   string // what the record in Redis holds: the JSON, or a reference to the document
	size    int    // of the JSON that was read
}

// leastEntry is what an entry takes at least in the JSON of a manifest that was not read yet.
const leastEntry = 100

// onCore does work on all entries, which waits for nothing, on a core of the tenant, see budget.Core: the ids of ten thousand take milliseconds.
func (m *manifest) onCore(ctx context.Context, do func()) error {
	leave, err := budget.Core(ctx, max(m.size, leastEntry*len(m.Entries)))
	if err != nil {
		return err
	}
	defer leave()
	do()
	return nil
}

// manifestEntry is an artifact, written short: what the job, the path or the other fields say is left out.
type manifestEntry struct {
	N       int64  `json:"n"`
	Path    string `json:"p"`
	Name    string `json:"a,omitempty"` // if it is not the last element of the path
	ID      string `json:"i,omitempty"` // if it is not the one that the job and the path give
	Key     string `json:"k,omitempty"` // if it is not keyOf
	Type    string `json:"t,omitempty"`
	SHA256  string `json:"h,omitempty"`
	Size    int64  `json:"s"`
	Created int64  `json:"c,omitempty"` // nanoseconds since 1970, like Expires
	Expires int64  `json:"e"`
}

// document is the key of the document of a version: no two writers use the same one.
func (m *manifest) document(version string) string {
	return farm.ManifestObject(m.job, version)
}

func (m *manifest) entry(n int64, a *farm.Artifact) manifestEntry {
	e := manifestEntry{N: n, Path: a.Path, Type: a.ContentType, SHA256: a.SHA256, Size: a.Size, Created: nanos(a.CreatedAt), Expires: nanos(a.ExpiresAt)}
	if a.Name != path.Base(a.Path) {
		e.Name = a.Name
	}
	if a.ID != farm.ArtifactID(m.job.ID, a.Path) {
		e.ID = a.ID
	}
	if a.Key != farm.ArtifactObject(a, a.Name) {
		e.Key = a.Key
	}
	return e
}

func (m *manifest) artifact(e *manifestEntry) *farm.Artifact {
	a := &farm.Artifact{
		ID: m.id(e), Tenant: m.job.Tenant, SandboxID: m.SandboxID, JobID: m.job.ID, Name: e.name(), Path: e.Path, Size: e.Size,
		ContentType: e.Type, SHA256: e.SHA256, CreatedAt: ofNanos(e.Created), ExpiresAt: ofNanos(e.Expires), Key: e.Key,
	}
	if a.Key == "" {
		a.Key = farm.ArtifactObject(a, a.Name)
	}
	return a
}

func (e *manifestEntry) name() string {
	if e.Name != "" {
		return e.Name
	}
	return path.Base(e.Path)
}

func (m *manifest) id(e *manifestEntry) string {
	if e.ID != "" {
		return e.ID
	}
	return farm.ArtifactID(m.job.ID, e.Path)
}

// find returns the entry of an artifact; nil: there is none.
func (m *manifest) find(id string) *manifestEntry {
	for i := range m.Entries {
		if e := &m.Entries[i]; m.id(e) == id {
			return e
		}
	}
	return nil
}

// put adds artifacts, and replaces the fields of those that it has. It reports whether that changed anything.
func (m *manifest) put(artifacts []farm.Artifact) (changed bool) {
	m.Entries = slices.Clone(m.Entries) // readers share the old list
	at := make(map[string]int, len(m.Entries))
	for i := range m.Entries {
		at[m.id(&m.Entries[i])] = i
	}
	for i := range artifacts {
		a := &artifacts[i]
		if have, ok := at[a.ID]; ok {
			e := m.entry(m.Entries[have].N, a)
			changed = changed || e != m.Entries[have]
			m.Entries[have] = e
			continue
		}
		at[a.ID] = len(m.Entries)
		m.Entries = append(m.Entries, m.entry(m.Next, a))
		m.Next++
		changed = true
	}
	return changed
}

// drop removes artifacts and counts those that it had.
func (m *manifest) drop(ids map[string]bool) (dropped int) {
	kept := m.Entries[:0:0] // a new list: readers share the old one
	for i := range m.Entries {
		if !ids[m.id(&m.Entries[i])] {
			kept = append(kept, m.Entries[i])
		}
	}
	dropped = len(m.Entries) - len(kept)
	m.Entries = kept
	return dropped
}

// newest is when the youngest artifact was created.
func (m *manifest) newest() time.Time {
	var at int64
	for i := range m.Entries {
		at = max(at, m.Entries[i].Created)
	}
	return ofNanos(at)
}

const (
	// changeAttempts bounds how often a change is tried anew because another one came first.
	changeAttempts = 100
	// readAttempts bounds how often a manifest is read anew because it was replaced before its document was read.
	readAttempts = 10
)

// changeManifest reads the manifest of a job, changes it and writes it, again if somebody else changed it in between. change reports whether
// there is anything to write; it must not keep the manifest. The job must run under the attempt, otherwise ErrFenced; 0 means any.
func (s *Store) changeManifest(ctx context.Context, job farm.Ref, attempt int, change func(*manifest) bool) error {
	for range changeAttempts {
		m, err := s.readManifest(ctx, job)
		if err != nil {
			return err
		}
		changed := false
		if err := m.onCore(ctx, func() { changed = change(m) }); err != nil || !changed {
			return err
		}
		if err = s.writeManifest(ctx, m, attempt); !errors.Is(err, errChanged) {
			return err
		}
	}
	return farm.Errorf(farm.CodeUnavailable, "The artifacts of job %s change all the time. Try again in a moment.", job.ID)
}

var (
	// errChanged says that a manifest is not the one that was read.
	errChanged = errors.New("manifest has changed")
	// errNoManifest says that the object store has lost the document of a manifest.
	errNoManifest = errors.New("the document of the manifest is missing")
)

// manifestArgs are the arguments of manifest_write.lua.
type manifestArgs struct {
	Job     string `lua:"job"`
	Attempt int    `lua:"attempt"` // under which the job must run; 0: any
	Sandbox string `lua:"sandbox"`
	Read    string `lua:"read"`    // version that was read; empty: none
	Version string `lua:"version"` // of what is written
	Doc     []byte `lua:"doc"`     // JSON, or a reference to a document
	Count   int    `lua:"count"`   // of artifacts; 0: the manifest is removed
	Bytes   int64  `lua:"bytes"`   // of all artifacts
	Expires string `lua:"expires"` // microseconds: when the last of them does
	// MaxMemory is as in acceptArgs, for a document of more than shortManifest in the record; 0: no bound.
	MaxMemory int64 `lua:"max_memory"`
}

// shortManifest is the length of the longest manifest that Redis always keeps: with what a record of it needs besides, less than its job counted when it was accepted.
// A longer one counts for max_unfinished when it is written, since lists of artifacts stay when their jobs are forgotten.
const shortManifest = 4 << 10

// writeManifest replaces a manifest that was read; errChanged if it is another one now. The document of an unknown outcome stays: it may be the
// one that the record names.
func (s *Store) writeManifest(ctx context.Context, m *manifest, attempt int) error {
	var data []byte
	var err error
	if waited := m.onCore(ctx, func() { data, err = db.Encode("manifest", m) }); waited != nil {
		return waited
	}
	if err != nil {
		return err
	}
	args := manifestArgs{Job: m.job.ID, Attempt: attempt, Sandbox: m.SandboxID, Read: m.version, Version: rand.Text(), Count: len(m.Entries)}
	var expires int64
	for i := range m.Entries {
		args.Bytes += m.Entries[i].Size
		expires = max(expires, m.Entries[i].Expires)
	}
	args.Expires = db.Micros(ofNanos(expires))
	var r db.Reply
	for _, inline := range []int{db.InlineBytes, shortManifest} {
		if args.Count > 0 {
			if args.Doc, err = s.StoreLarge(ctx, m.document(args.Version), data, inline); err != nil {
				return err
			}
		}
		args.MaxMemory = 0
		if inline > shortManifest && len(args.Doc) > shortManifest {
			args.MaxMemory = tenants.UnfinishedLimit(ctx, s.DB)
		}
		if r, err = s.Run(ctx, "write manifest", "manifest_write", m.job.Tenant, args); err != nil {
			return err
		}
		if r.Text(0) != "memory" {
			break
		}
	}
	old := m.value
	switch r.Text(0) {
	case "ok":
	case "changed":
		old, err = string(args.Doc), errChanged
	default:
		old, err = string(args.Doc), fenced("record artifacts", m.job, r)
	}
	s.discard(ctx, old)
	return err
}

// readManifest reads the manifest of a job; an empty one if it has none.
func (s *Store) readManifest(ctx context.Context, job farm.Ref) (*manifest, error) {
	for range readAttempts {
		found, err := s.Redis.HMGet(ctx, s.Key(job.Tenant, db.KeyManifest, job.ID), manifestFields()...).Result()
		if err != nil {
			return nil, db.Wrap("read manifest", err)
		}
		m, err := s.openManifest(ctx, job, found)
		if !errors.Is(err, errChanged) {
			return m, err
		}
	}
	return nil, fmt.Errorf("read manifest of job %s: %w", job.ID, errNoManifest)
}

// manifestFields are what openManifest needs.
func manifestFields() []string { return []string{"version", "doc", "place"} }

// openManifest decodes a manifest; errChanged if its document was replaced after the record was read.
func (s *Store) openManifest(ctx context.Context, job farm.Ref, fields []any) (*manifest, error) {
	text := func(i int) string { s, _ := fields[i].(string); return s }
	m := &manifest{job: job, version: text(0), value: text(1)}
	m.place, _ = strconv.ParseInt(text(2), 10, 64)
	if m.version == "" {
		return m, nil
	}
	if err := s.decodeManifest(ctx, m); err != nil {
		return nil, err
	}
	return m, nil
}

// discard removes the document of a value that no record has any more. A document that is left over is removed by the lifecycle rules.
func (s *Store) discard(ctx context.Context, value string) {
	key, isDocument := strings.CutPrefix(value, db.Reference)
	if !isDocument || s.Documents == nil {
		return
	}
	if err := s.Documents.Delete(ctx, key); err != nil {
		s.Log.WarnContext(ctx, "an old document was not removed", "key", key, "error", err)
	}
}

// forgetManifest removes the record of a manifest whose document is missing.
func (s *Store) forgetManifest(ctx context.Context, job farm.Ref) error {
	version, err := s.Redis.HGet(ctx, s.Key(job.Tenant, db.KeyManifest, job.ID), "version").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return db.Wrap("read manifest", err)
	}
	err = s.writeManifest(ctx, &manifest{job: job, version: version}, 0)
	if errors.Is(err, errChanged) { // somebody wrote a new one
		return nil
	}
	return err
}

func (s *Store) decodeManifest(ctx context.Context, m *manifest) error {
	spilled := strings.HasPrefix(m.value, db.Reference)
	if spilled {
		if s.manifests.get(m) {
			return nil
		}
		place := s.manifests.reading.Ask(m.job.Tenant) // long ones are read one after the other: a process holds few of them at once
		defer place.Leave()
		select {
		case <-place.Granted():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	data, err := s.Resolve(ctx, m.value)
	if farm.CodeOf(err) == farm.CodeNotFound {
		return fmt.Errorf("%w: %w", errChanged, err)
	}
	if err != nil {
		return err
	}
	m.size = len(data)
	if waited := m.onCore(ctx, func() { err = json.Unmarshal([]byte(data), m) }); waited != nil {
		return waited
	}
	if err != nil {
		return fmt.Errorf("decode manifest of job %s: %w", m.job.ID, err)
	}
	if spilled {
		s.manifests.add(m)
	}
	return nil
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func ofNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// readManifests reads the manifests of several jobs one after the other, skips those that are gone, and stops when use, which waits for nothing, says so.
func (s *Store) readManifests(ctx context.Context, tenant string, jobs []string, use func(*manifest) (more bool)) error {
	pipe := s.Redis.Pipeline()
	cmds := make([]*redis.SliceCmd, len(jobs))
	for i, job := range jobs {
		cmds[i] = pipe.HMGet(ctx, s.Key(tenant, db.KeyManifest, job), manifestFields()...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return db.Wrap("read manifests", err)
	}
	for i, job := range jobs {
		ref := farm.Ref{Tenant: tenant, ID: job}
		m, err := s.openManifest(ctx, ref, cmds[i].Val())
		if errors.Is(err, errChanged) {
			m, err = s.readManifest(ctx, ref)
		}
		if errors.Is(err, errNoManifest) {
			s.Log.ErrorContext(ctx, "artifacts of a job are not listed: the object store has lost their manifest", "job_id", job, "tenant", tenant)
			continue
		}
		if err != nil {
			return err
		}
		if m.version == "" {
			continue
		}
		more := false
		if err := m.onCore(ctx, func() { more = use(m) }); err != nil || !more {
			return err
		}
	}
	return nil
}

const (
	// cachedManifests is how many long manifests a process keeps decoded, for callers that read the artifacts of a job one by one.
	cachedManifests = 4
	// readingManifests is how many long manifests a process reads and decodes at a time, half of them for one tenant: a read may wait for its memory.
	readingManifests = 4
)

// manifestCache has the long manifests that were read last. A version of a manifest never changes.
type manifestCache struct {
	reading *budget.Places // for each that is being read

	mu   sync.Mutex
	last []*manifest // the one that was used last is at the end
}

func newManifestCache() *manifestCache {
	return &manifestCache{reading: budget.NewPlaces(readingManifests)}
}

// get fills in a manifest whose version is known, and reports whether it could.
func (c *manifestCache) get(m *manifest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.index(m)
	if i < 0 {
		return false
	}
	have := c.last[i]
	c.last = append(slices.Delete(c.last, i, i+1), have)
	m.SandboxID, m.Next, m.Entries, m.size = have.SandboxID, have.Next, have.Entries, have.size
	return true
}

// add keeps a copy of a manifest. Its entries are shared and must not be changed in place.
func (c *manifestCache) add(m *manifest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index(m) >= 0 {
		return
	}
	kept := *m
	if c.last = append(c.last, &kept); len(c.last) > cachedManifests {
		c.last = slices.Delete(c.last, 0, 1)
	}
}

func (c *manifestCache) index(m *manifest) int {
	return slices.IndexFunc(c.last, func(o *manifest) bool { return o.job == m.job && o.version == m.version })
}
