package engine

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Images lists the sandbox images of the engine: those with LabelImage and a tag. Of several images with one name it lists the one tagged
// ":latest", or else the newest. Ref is a tag other than ":latest" where there is one, since ":latest" may move.
func (e *Engine) Images(ctx context.Context) ([]farm.Image, error) {
	var found []image.Summary
	err := e.call(ctx, readTimeout, "list images", func(ctx context.Context) error {
		var err error
		found, err = e.cli.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", LabelImage))})
		return err
	})
	if err != nil {
		return nil, err
	}
	best := map[string]image.Summary{}
	for _, f := range found {
		name := f.Labels[LabelImage]
		if tagged := stableTag(f); name == "" || tagged == "" {
			continue
		}
		if old, ok := best[name]; !ok || rank(f) > rank(old) || rank(f) == rank(old) && f.Created > old.Created {
			best[name] = f
		}
	}
	list := make([]farm.Image, 0, len(best))
	for name, f := range best {
		list = append(list, farm.Image{
			Name: name, Ref: stableTag(f), Description: f.Labels[LabelDescription], Languages: fields(f.Labels[LabelLanguages]),
			Size: f.Size, CreatedAt: time.Unix(f.Created, 0).UTC(), ID: f.ID,
			Digests: digests(f.RepoDigests),
		})
	}
	slices.SortFunc(list, func(a, b farm.Image) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// rank puts the image that is tagged latest before others of its name.
func rank(f image.Summary) int {
	if slices.ContainsFunc(f.RepoTags, latest) {
		return 1
	}
	return 0
}

func latest(tag string) bool { return strings.HasSuffix(tag, ":latest") }

// stableTag returns the tag to use for an image; empty if it has none.
func stableTag(f image.Summary) string {
	found := ""
	for _, tag := range slices.Sorted(slices.Values(f.RepoTags)) {
		switch {
		case strings.HasPrefix(tag, "<none>"):
		case !latest(tag):
			return tag
		default:
			found = tag
		}
	}
	return found
}

// digests removes the names of repositories.
func digests(names []string) (list []string) {
	for _, name := range names {
		if _, digest, ok := strings.Cut(name, "@"); ok && !slices.Contains(list, digest) {
			list = append(list, digest)
		}
	}
	return list
}

// fields splits a label at its commas.
func fields(label string) []string {
	list := []string{}
	for part := range strings.SplitSeq(label, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// HasImage reports whether the engine has an image of this name or id.
func (e *Engine) HasImage(ctx context.Context, ref string) (bool, error) {
	err := e.call(ctx, readTimeout, "inspect image", func(ctx context.Context) error {
		_, err := e.cli.ImageInspect(ctx, ref)
		return err
	})
	if cerrdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Tag adds a name to an image.
func (e *Engine) Tag(ctx context.Context, ref, tag string) error {
	return e.call(ctx, readTimeout, "tag image", func(ctx context.Context) error { return e.cli.ImageTag(ctx, ref, tag) })
}

// RemoveImage removes a name of an image, and the image with its last name. A missing image is not an error. CodeConflict when a
// container uses it.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	return e.call(ctx, removeTimeout, "remove image", func(ctx context.Context) error {
		_, err := e.cli.ImageRemove(ctx, ref, image.RemoveOptions{PruneChildren: true})
		if cerrdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// Import creates an image with one layer from the uncompressed tar of a file system.
func (e *Engine) Import(ctx context.Context, ref string, tar io.Reader) error {
	return e.call(ctx, buildTimeout, "import image", func(ctx context.Context) error {
		body, err := e.cli.ImageImport(ctx, image.ImportSource{Source: tar, SourceName: "-"}, ref, image.ImportOptions{})
		return follow(body, err, func(farm.Progress) {})
	})
}

// Pull fetches an image from its registry. The caller's context bounds it; progress may be nil.
func (e *Engine) Pull(ctx context.Context, ref string, progress func(farm.Progress)) error {
	return e.call(ctx, buildTimeout, "pull image", func(ctx context.Context) error {
		body, err := e.cli.ImagePull(ctx, ref, image.PullOptions{})
		return follow(body, err, progress)
	})
}
