package mcp

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/wire"
)

// pictures are the image blocks of an answer.
type pictures struct {
	blocks []mcp.Content
	shown  map[int]bool // displayed values that stand in blocks, by their index
	notes  []string
}

// isPicture tells the images that models can look at.
func isPicture(mime string) bool {
	return slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, mime)
}

func isText(mime string) bool {
	return strings.HasPrefix(mime, "text/") || slices.Contains([]string{"application/json", "application/javascript", "image/svg+xml"}, mime)
}

func hasMime(list []wire.Rich, mime string) bool {
	return slices.ContainsFunc(list, func(r wire.Rich) bool { return r.Mime == mime })
}

// pictures makes image blocks of what the code displayed. What it only saved is shown when it displayed nothing: a plot
// that is displayed and saved would otherwise come twice, since the two are different bytes.
func (c *call) pictures(out *runOutcome) pictures {
	p := pictures{shown: map[int]bool{}}
	seen := map[string]bool{}
	left := 0
	put := func(mime string, content []byte) bool {
		sum := sha256.Sum256(content)
		key := hex.EncodeToString(sum[:])
		switch {
		case seen[key]:
		case int64(len(content)) > c.Limits.ImageBytes, len(p.blocks) == c.Limits.Images:
			left++
			return false
		default:
			seen[key] = true
			p.blocks = append(p.blocks, mcp.NewImageContent(base64.StdEncoding.EncodeToString(content), mime))
		}
		return true
	}
	displayed := false
	for i, r := range out.rich {
		if !isPicture(r.Mime) {
			continue
		}
		displayed = true
		if content := c.picture(r); content != nil {
			p.shown[i] = put(r.Mime, content)
		} else {
			left++
		}
	}
	if !displayed {
		for _, a := range out.artifacts {
			if !isPicture(a.ContentType) || seen[a.SHA256] {
				continue
			}
			if a.Size > c.Limits.ImageBytes || len(p.blocks) == c.Limits.Images {
				left++
			} else if content := c.stored(a.ID); content != nil {
				put(a.ContentType, content)
			}
		}
	}
	if left > 0 {
		p.notes = append(p.notes, fmt.Sprintf("%d pictures are not in this answer, which takes %d of at most %d bytes each: use their links.", left, c.Limits.Images, c.Limits.ImageBytes))
	}
	return p
}

// picture gives the bytes of a displayed picture; nil when there are none to be had within the limit.
func (c *call) picture(r wire.Rich) []byte {
	if r.ArtifactID != "" {
		return c.stored(r.ArtifactID)
	}
	content, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(r.Data), ""))
	if err != nil || len(content) == 0 {
		return nil
	}
	return content
}

// stored reads a picture that is an artifact. One that cannot be read is left to its link.
func (c *call) stored(id string) []byte {
	a, err := c.farm.Artifact(c.ctx, id, c.Limits.ImageBytes)
	if err != nil {
		c.Logger.WarnContext(c.ctx, "picture is not shown", slog.String("artifact_id", id), slog.Any("error", err))
		return nil
	}
	return a.Content
}

// links makes a resource link for each artifact. Its address is one that resources/read takes: unlike the presigned link,
// which stands in the text and in the structured content, it needs no way to the object store and does not expire
// before the artifact does.
func (c *call) links(list []wire.Artifact) []mcp.Content {
	blocks := make([]mcp.Content, 0, min(len(list), c.Limits.Links))
	for _, a := range list[:min(len(list), c.Limits.Links)] {
		blocks = append(blocks, link(artifactURI(a.ID), a.Name, "Made by the run, in the workspace at "+a.Path, a.ContentType, a.Size))
	}
	return blocks
}

func link(uri, name, description, mime string, size int64) mcp.Content {
	l := mcp.NewResourceLink(uri, name, description, mime)
	l.Size = &size
	return l
}

func artifactURI(id string) string { return "sandfarm://artifacts/" + id }

func fileURI(sandboxID, path string) string {
	elements := strings.Split(path, "/")
	for i, e := range elements {
		elements[i] = url.PathEscape(e)
	}
	return "sandfarm://sandboxes/" + sandboxID + "/files/" + strings.Join(elements, "/")
}

func errorOf(e *wire.CodeError) any {
	if e == nil {
		return nil
	}
	return map[string]any{"name": e.Name, "value": e.Value, "traceback": some(e.Traceback)}
}

func artifactsOf(list []wire.Artifact) []map[string]any {
	out := make([]map[string]any, len(list))
	for i, a := range list {
		out[i] = map[string]any{
			"id": a.ID, "name": a.Name, "path": a.Path, "size": a.Size, "content_type": a.ContentType, "sha256": a.SHA256, "url": a.URL,
		}
	}
	return out
}

func outcomesOf(list []wire.InstalledOne) []map[string]any {
	out := make([]map[string]any, len(list))
	for i, p := range list {
		out[i] = map[string]any{"name": p.Name, "requested": p.Requested, "status": p.Status, "version": p.Version, "message": strings.TrimSpace(p.Message + " " + p.Why)}
	}
	return out
}

// resultsOf are the displayed values but for the pictures in blocks.
func resultsOf(list []wire.Rich, shown map[int]bool) []map[string]any {
	out := []map[string]any{}
	for i, r := range list {
		switch {
		case shown[i]:
		case r.URL != "":
			out = append(out, map[string]any{"mime": r.Mime, "url": r.URL})
		case !isPicture(r.Mime):
			out = append(out, map[string]any{"mime": r.Mime, "data": r.Data})
		}
	}
	return out
}

// some makes a null array an empty one.
func some[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
