package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// ArtifactFilter narrows a list of artifacts. Zero fields do not.
type ArtifactFilter struct {
	SandboxID string
	JobID     string
}

// Content is a download. The caller closes it.
type Content struct {
	io.ReadCloser
	Name       string    // file name that the farm suggests; untrusted: it may not be a valid or safe name here
	Size       int64     // bytes to come; negative: unknown
	ModifiedAt time.Time // for a file of a workspace; zero: unknown
	ETag       string    // for a file anywhere in a sandbox: its version; empty: unknown

	trailer http.Header
}

// LeftOut is how many files and directories of a directory are not in its tar, since they cannot be read or packed. It is known once all of the
// tar was read, up to io.EOF; 0 before, and if a proxy on the way has dropped the trailer.
func (c *Content) LeftOut() int {
	n, _ := strconv.Atoi(c.trailer.Get(wire.LeftOutTrailer))
	return n
}

// Artifacts lists the artifacts of the tenant of the key, newest first, and fetches pages as needed.
func (c *Client) Artifacts(ctx context.Context, filter ArtifactFilter) iter.Seq2[wire.Artifact, error] {
	query := url.Values{}
	if filter.SandboxID != "" {
		query.Set("sandbox_id", filter.SandboxID)
	}
	if filter.JobID != "" {
		query.Set("job_id", filter.JobID)
	}
	return listPaged[wire.Artifact](ctx, c, []string{"v1", "artifacts"}, query)
}

// Artifact reads an artifact, with a fresh link.
func (c *Client) Artifact(ctx context.Context, id string) (wire.Artifact, error) {
	var got wire.Artifact
	err := c.json(ctx, call{method: http.MethodGet, path: []string{"v1", "artifacts", id, "meta"}}, &got)
	return got, err
}

// DeleteArtifact removes an artifact. Links to it no longer work.
func (c *Client) DeleteArtifact(ctx context.Context, id string) error {
	return c.json(ctx, call{method: http.MethodDelete, path: []string{"v1", "artifacts", id}}, nil)
}

// Link makes a new link to an artifact. Anyone with the link can download until it expires.
func (c *Client) Link(ctx context.Context, id string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxAttempts*answerTimeout, errSlow)
	defer cancel()
	r, err := c.send(ctx, call{method: http.MethodGet, path: []string{"v1", "artifacts", id}})
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	to, err := r.Location()
	if err != nil {
		return "", fmt.Errorf("read the link of artifact %s: %w", id, err)
	}
	return to.String(), nil
}

// Download streams an artifact. An expired link is renewed by the id of the artifact. No credentials are sent. The caller
// closes the stream, which only ctx limits.
func (c *Client) Download(ctx context.Context, artifact wire.Artifact) (*Content, error) {
	return c.DownloadFrom(ctx, artifact, 0)
}

// DownloadFrom is Download from a byte offset.
func (c *Client) DownloadFrom(ctx context.Context, artifact wire.Artifact, offset int64) (*Content, error) {
	if artifact.URL != "" {
		content, err := c.Fetch(ctx, artifact.URL, offset)
		if err == nil || ctx.Err() != nil || artifact.ID == "" {
			return content, err
		}
	}
	link, err := c.Link(ctx, artifact.ID)
	if err != nil {
		return nil, err
	}
	return c.Fetch(ctx, link, offset)
}

// Fetch streams the content behind a link of the farm, such as the url of a rich result, from a byte offset. No credentials
// are sent. Links are secrets, so errors do not contain them.
func (c *Client) Fetch(ctx context.Context, link string, offset int64) (*Content, error) {
	for attempt := 1; ; attempt++ {
		content, err := c.fetch(ctx, link, offset)
		if err == nil {
			return content, nil
		}
		if attempt == maxAttempts || ctx.Err() != nil || !temporary(err) {
			return nil, fmt.Errorf("download: %w", err)
		}
		if err := sleep(ctx, c.pause(attempt)); err != nil {
			return nil, fmt.Errorf("download: %w", err)
		}
	}
}

func (c *Client) fetch(ctx context.Context, link string, offset int64) (*Content, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		return nil, errors.New("the link is not a valid URL")
	}
	r.Header.Set("User-Agent", c.userAgent)
	r.Header.Set("Accept-Encoding", "identity") // byte for byte
	if offset > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	answer, err := c.plain.Do(r)
	if err != nil {
		return nil, unwrapURL(err)
	}
	switch {
	case offset > 0 && answer.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		answer.Body.Close()
		return &Content{ReadCloser: http.NoBody}, nil
	case answer.StatusCode >= http.StatusBadRequest:
		defer answer.Body.Close()
		return nil, errorOf(answer)
	case offset > 0 && answer.StatusCode != http.StatusPartialContent:
		answer.Body.Close()
		return nil, fmt.Errorf("the store sent the whole object instead of the part from byte %d", offset)
	}
	content := &Content{ReadCloser: answer.Body, Size: answer.ContentLength}
	if _, params, err := mime.ParseMediaType(answer.Header.Get("Content-Disposition")); err == nil {
		content.Name = params["filename"]
	}
	return content, nil
}
