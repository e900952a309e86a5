package execution

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/node"
)

// smallFile is how much of a file is read into memory before its upload starts: a file up to this size is uploaded as it was at
// one moment.
const smallFile = 256 << 10

// upload uploads what an ended execution left: changed files and whole outputs. It returns their records and those of large
// displays, files first, by path. Files that changed or vanished meanwhile are left out, with a note.
func (x *Runner) upload(ctx context.Context, e *execution) ([]farm.Artifact, error) {
	if err := e.collect.unstored; err != nil {
		return nil, err
	}
	changed := e.collect.outcome.Files
	fits, err := x.reserveFiles(ctx, e, changed)
	if err != nil {
		return nil, err
	}
	var (
		mu    sync.Mutex
		files = make([]*farm.Artifact, len(changed))
		other []farm.Artifact
	)
	skip := func(f agent.ChangedFile) {
		mu.Lock()
		defer mu.Unlock()
		e.collect.skipped = append(e.collect.skipped, f)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(x.cfg.UploadParallel)
	for i, changed := range changed {
		if !fits[i] {
			skip(changed)
			continue
		}
		g.Go(func() error {
			a, err := x.uploadFile(gctx, e, changed)
			if errors.Is(err, errStorageFull) {
				skip(changed)
				return nil
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if a == nil {
				e.collect.note("%s changed or vanished while it was read, or came too slowly, so it is not an artifact.", noted(changed.Path, maxNoted))
			}
			files[i] = a
			return nil
		})
	}
	for _, out := range e.collect.outputs {
		for _, s := range out.both() {
			g.Go(func() error { return x.storeOutput(gctx, e, s) })
		}
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("upload artifacts: %w", err)
	}
	x.noteSkipped(ctx, e)
	for _, out := range e.collect.outputs {
		for _, s := range out.both() {
			if s.artifact != nil {
				other = append(other, *s.artifact)
			}
		}
	}
	for _, r := range e.collect.rich {
		if r.Artifact != nil {
			other = append(other, *r.Artifact)
		}
	}
	slices.SortFunc(other, func(a, b farm.Artifact) int { return strings.Compare(a.Path, b.Path) })
	var all []farm.Artifact
	for _, a := range files {
		if a != nil {
			all = append(all, *a)
		}
	}
	return append(all, other...), nil
}

// artifact makes the record of an artifact. Its id is derived from the job's id, which is random, and the path: a worker that takes
// over makes the same id and key.
func (x *Runner) artifact(e *execution, p, contentType string) *farm.Artifact {
	id := farm.ArtifactID(e.job.ID, p)
	now := x.deps.Now()
	a := &farm.Artifact{
		ID: id, Tenant: e.job.Tenant, SandboxID: e.sandbox.ID, JobID: e.job.ID,
		Name: path.Base(p), Path: p, ContentType: contentType, CreatedAt: now,
		ExpiresAt: now.Add(time.Duration(x.cfg.Limits.RetentionSeconds) * time.Second),
	}
	a.Key = farm.ArtifactObject(a, safeName(a.Name))
	return a
}

// fileKey is the key of a file of the workspace. Each attempt has its own: a worker that has lost the job in the middle of an upload, and goes
// on later, would otherwise replace the artifact by what later jobs made of the file. Outputs and displays are the same bytes in each attempt.
func fileKey(key string, attempt int) string {
	if attempt < 2 {
		return key
	}
	dir, name := path.Split(key)
	return fmt.Sprintf("%s.%d/%s", strings.TrimSuffix(dir, "/"), attempt, name)
}

// safeName makes a name that every object store accepts. The true name is in the record and in the Content-Disposition of links.
func safeName(name string) string {
	safe := strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || strings.ContainsRune(`/\:*?"<>|%#`, r) {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(name, "_"))
	if len(safe) > 200 {
		safe = strings.ToValidUTF8(safe[len(safe)-200:], "")
	}
	if strings.Trim(safe, ". ") == "" {
		return "file"
	}
	return safe
}

// errChanged says that a file changed while it was uploaded, or came too slowly.
var errChanged = errors.New("the file changed while it was read")

// uploadFile uploads one file of the workspace; nil if it is not a regular file within the limits any more.
func (x *Runner) uploadFile(ctx context.Context, e *execution, changed agent.ChangedFile) (*farm.Artifact, error) {
	var a *farm.Artifact
	err := x.retry(ctx, func(ctx context.Context) error {
		c, err := x.node.Connect(ctx, e.sandbox)
		if err != nil {
			if gone, ok := x.node.Gone(ctx, e.sandbox); ok {
				return gone
			}
			return err
		}
		a, err = x.copyFile(ctx, c, e, changed.Path, changed.Size)
		return err
	})
	if errors.Is(err, node.ErrGone) {
		return nil, err
	}
	switch farm.CodeOf(err) {
	case farm.CodeNotFound, farm.CodeInvalid, farm.CodeTooLarge, farm.CodeConflict:
		return nil, nil // documented: no artifact
	default:
	}
	if errors.Is(err, errChanged) {
		return nil, nil // documented: no artifact
	}
	return a, err
}

// openFiles is how many files a process uploads at once: each takes up to 1 MiB until it is stored, in the window of its stream and in buffers, also while
// it waits for memory to be uploaded.
const openFiles = 16

// copyFile uploads a file, once its tenant has a place for it, for which as many bytes are reserved as it had when it was found.
func (x *Runner) copyFile(ctx context.Context, c *client.Client, e *execution, p string, reserved int64) (*farm.Artifact, error) {
	place := x.reading.Ask(e.job.Tenant)
	defer place.Leave()
	select {
	case <-place.Granted():
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	r, entry, err := open(ctx, c, p, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", p, err)
	}
	defer func() { _ = r.Close() }()
	if entry.Size > x.cfg.Limits.MaxArtifactBytes {
		return nil, farm.Errorf(farm.CodeTooLarge, "the file has %d bytes", entry.Size)
	}
	if grown := entry.Size - reserved; grown > 0 {
		if _, err := x.reserve(ctx, e, grown); err != nil {
			return nil, err
		}
	}
	source := &exactReader{r: io.LimitReader(r, entry.Size), left: entry.Size}
	first := make([]byte, min(entry.Size, smallFile))
	if _, err := io.ReadFull(source, first); err != nil {
		return nil, source.explain(c)
	}
	a := x.artifact(e, p, contentType(p, first[:min(len(first), 512)]))
	a.Key = fileKey(a.Key, e.job.Attempt)
	if err := x.put(ctx, a, io.MultiReader(bytes.NewReader(first), source), entry.Size); err != nil {
		if source.broken {
			return nil, source.explain(c)
		}
		return nil, fmt.Errorf("store %q: %w", p, err)
	}
	return a, nil
}

// exactReader gives exactly left bytes, or errChanged.
type exactReader struct {
	r      io.Reader
	left   int64
	broken bool
}

// explain says why there were too few bytes: the connection to the sandbox broke, which is retried, or the file became shorter.
func (x *exactReader) explain(c *client.Client) error {
	select {
	case <-c.Done():
		return farm.Errorf(farm.CodeUnavailable, "the connection to the sandbox broke while a file was read")
	default:
		return errChanged
	}
}

func (x *exactReader) Read(p []byte) (int, error) {
	n, err := x.r.Read(p)
	x.left -= int64(n)
	if err != nil && x.left > 0 {
		x.broken = true
		return n, errChanged
	}
	return n, err
}

func putOptions(a *farm.Artifact) blob.PutOptions {
	return blob.PutOptions{ContentType: a.ContentType, Filename: a.Name}
}

// types adds what Go's own table leaves to the host's mime.types, since results must not depend on the host.
var types = map[string]string{
	".csv": "text/csv; charset=utf-8", ".tsv": "text/tab-separated-values; charset=utf-8", ".txt": "text/plain; charset=utf-8",
	".md": "text/markdown; charset=utf-8", ".py": "text/x-python; charset=utf-8", ".log": "text/plain; charset=utf-8",
	".json": "application/json", ".jsonl": "application/jsonl", ".yaml": "application/yaml", ".yml": "application/yaml",
	".toml": "application/toml", ".ipynb": "application/x-ipynb+json", ".parquet": "application/vnd.apache.parquet",
	".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
	".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
	".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
	".zip":  "application/zip", ".gz": "application/gzip", ".tar": "application/x-tar", ".npy": "application/octet-stream",
	".mp4": "video/mp4", ".webm": "video/webm", ".mp3": "audio/mpeg", ".wav": "audio/wav", ".bin": "application/octet-stream",
	".tif": "image/tiff", ".tiff": "image/tiff", ".bmp": "image/bmp",
}

// contentType returns the MIME type of a file by its name, or else by its first bytes; nil: they are unknown.
func contentType(name string, first []byte) string {
	ext := strings.ToLower(path.Ext(name))
	if t, ok := types[ext]; ok {
		return t
	}
	if t := mime.TypeByExtension(ext); t != "" {
		return t
	}
	if first == nil {
		return "application/octet-stream"
	}
	return http.DetectContentType(first)
}

// extensionOf returns the file name extension of a MIME type that kernels display.
func extensionOf(mimeType string) string {
	switch mimeType {
	case "image/png":
		return ".png"
	case "image/jpeg":
		return ".jpg"
	case "image/gif":
		return ".gif"
	case "image/svg+xml":
		return ".svg"
	case "text/html":
		return ".html"
	case "text/plain":
		return ".txt"
	case "application/pdf":
		return ".pdf"
	}
	if strings.HasSuffix(mimeType, "json") {
		return ".json"
	}
	return ".bin"
}
