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
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// pictures are the image blocks of an answer.
type pictures struct {
	blocks []mcp.Content
	shown  map[int]int // number of a displayed value → position of the block that shows it, from 1
	notes  []string
}

// pictureTypes are the images that models can look at, the preferred type first.
func pictureTypes() []string { return []string{"image/png", "image/jpeg", "image/webp", "image/gif"} }

func isPicture(mime string) bool { return slices.Contains(pictureTypes(), mime) }

// pictures makes an image block of each displayed value that has a picture, in one of its types. Pictures that the code only
// saved are shown if it displayed none: a plot that is displayed and saved would otherwise come twice, as different bytes. The call stays charged for
// those that it sends.
func (c *call) pictures(out *runOutcome) pictures {
	p := pictures{shown: map[int]int{}}
	blockOf := map[string]int{} // by the SHA-256 of the content
	leftOut, refused := 0, false
	stored := func(id string) []byte {
		if refused { // for lack of memory: the next would wait as long
			return nil
		}
		content, err := c.stored(id)
		refused = farm.CodeOf(err) == farm.CodeExhausted || c.ctx.Err() != nil
		return content
	}
	held := budget.Held(c.ctx)
	put := func(mime string, content []byte) int {
		sum := sha256.Sum256(content)
		key := hex.EncodeToString(sum[:])
		switch {
		case blockOf[key] > 0:
		case int64(len(content)) > c.Limits.ImageBytes, len(p.blocks) == c.Limits.Images:
			leftOut++
		default:
			p.blocks = append(p.blocks, mcp.NewImageContent(base64.StdEncoding.EncodeToString(content), mime))
			blockOf[key] = len(p.blocks)
			held = budget.Held(c.ctx)
		}
		budget.Keep(c.ctx, held)
		return blockOf[key]
	}
	listed := make(map[string]wire.Artifact, len(out.artifacts))
	for _, a := range out.artifacts {
		listed[a.ID] = a
	}
	displayed := false
	for _, v := range out.values {
		r, ok := v.First(pictureTypes()...)
		if !ok {
			continue
		}
		displayed = true
		var content []byte
		at := 0
		switch a, there := listed[r.ArtifactID]; {
		case r.ArtifactID == "":
			content = decoded(r.Data)
		case there && blockOf[a.SHA256] > 0: // it equals one that is shown
			at = blockOf[a.SHA256]
		case there && len(p.blocks) < c.Limits.Images && a.Size <= c.Limits.ImageBytes:
			content = stored(r.ArtifactID)
		}
		if content != nil {
			at = put(r.Mime, content)
		} else if at == 0 {
			leftOut++
		}
		if at > 0 {
			p.shown[v.Number()] = at
		}
	}
	if !displayed {
		for _, a := range out.artifacts {
			if !isPicture(a.ContentType) || blockOf[a.SHA256] > 0 {
				continue
			}
			if a.Size > c.Limits.ImageBytes || len(p.blocks) == c.Limits.Images {
				leftOut++
			} else if content := stored(a.ID); content != nil {
				put(a.ContentType, content)
			}
		}
	}
	if leftOut > 0 {
		what := "1 picture is"
		if leftOut > 1 {
			what = fmt.Sprintf("%d pictures are", leftOut)
		}
		p.notes = append(p.notes, fmt.Sprintf("%s not in this answer, which takes %d of at most %d bytes each: draw with a lower dpi, or use the links.", what, c.Limits.Images, c.Limits.ImageBytes))
	}
	return p
}

// decoded is the content of a picture that is part of a result; nil: it has none.
func decoded(data string) []byte {
	content, err := fromBase64(data)
	if err != nil || len(content) == 0 {
		return nil
	}
	return content
}

// stored reads a picture that is an artifact; nil if it is over the limit. If that fails, the caller still has the link.
func (c *call) stored(id string) ([]byte, error) {
	a, err := c.farm.Artifact(c.ctx, id, c.Limits.ImageBytes)
	if err != nil {
		c.Logger.WarnContext(c.ctx, "picture is not shown", slog.String("artifact_id", id), slog.Any("error", err))
	}
	return a.Content, err
}

// links makes a resource link for each artifact, with an address for resources/read. Unlike the presigned link in the structured
// content, that address works without access to the object store and does not expire before the artifact does.
func links(list []wire.Artifact) []mcp.Content {
	blocks := make([]mcp.Content, 0, len(list))
	for _, a := range list {
		blocks = append(blocks, link(artifactURI(a.ID), a.Name, a.ContentType, a.Size))
	}
	return blocks
}

func link(uri, name, mime string, size int64) mcp.Content {
	l := mcp.NewResourceLink(uri, name, "", mime)
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
	return map[string]any{"name": e.Name, "value": e.Value, "traceback": emptyIfNil(e.Traceback)}
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
		out[i] = map[string]any{"name": p.Name, "requested": p.Requested, "status": p.Status, "version": p.Version, "message": strings.TrimSpace(asTool(p.Message) + " " + p.Why)}
	}
	return out
}

// resultsOf lists the entries of displayed values, without the pictures of values that an image block shows. Entries of one value
// have the same number.
func resultsOf(values []wire.Value, shown map[int]int) []map[string]any {
	out := []map[string]any{}
	for _, v := range values {
		for _, r := range v {
			entry := map[string]any{"display": r.Display, "mime": r.Mime}
			switch {
			case isPicture(r.Mime) && shown[r.Display] > 0:
				continue
			case r.URL != "":
				entry["url"] = r.URL
			case !isPicture(r.Mime):
				entry["data"] = r.Data
			default:
				continue
			}
			out = append(out, entry)
		}
	}
	return out
}

// emptyIfNil makes a nil slice an empty one, which is [] in JSON.
func emptyIfNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
