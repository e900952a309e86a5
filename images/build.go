package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
)

// Builder is the part of an engine that building needs.
type Builder interface {
	HasImage(ctx context.Context, ref string) (bool, error)
	Build(ctx context.Context, spec engine.BuildSpec, progress func(farm.Progress)) error
	Tag(ctx context.Context, ref, tag string) error
}

var _ Builder = (*engine.Engine)(nil)

// Options of a build. The zero value builds on sandfarm/base:latest with packages from PyPI.
type Options struct {
	Base     string       // image to build on; empty: "sandfarm/base:latest". A change of it alone does not build again
	IndexURL string       // Python package index; empty: PyPI
	FilesURL string       // where the index's links point, if not to its own host; empty: PyPI's
	NpmURL   string       // npm registry; empty: npm's own
	Cache    index.Cache  // keeps downloads for the next build; nil: no cache
	Logger   *slog.Logger // nil: nothing is logged
}

// Build ensures that the engine has the current version of the image, and returns its name there. It also gets the tag
// ":latest". An existing image is not rebuilt. Packages come through an index on this host's loopback, which the
// build reaches over the host's network: the engine must run on this host. Progress may be nil.
func Build(ctx context.Context, name string, b Builder, opts Options, progress func(farm.Progress)) (ref string, err error) {
	d, err := Find(name)
	if err != nil {
		return "", err
	}
	ref, latest := d.Ref(), "sandfarm/"+name+":latest"
	there, err := b.HasImage(ctx, ref)
	if err != nil {
		return "", fmt.Errorf("look for image %s: %w", ref, err)
	}
	if there {
		if err := b.Tag(ctx, ref, latest); err != nil {
			return "", fmt.Errorf("tag image %s: %w", ref, err)
		}
		return ref, nil
	}
	packages, err := index.Serve(ctx, index.Config{
		PyPIURL: opts.IndexURL, FilesURL: opts.FilesURL, NpmURL: opts.NpmURL, Cache: opts.Cache, Logger: opts.Logger,
	})
	if err != nil {
		return "", fmt.Errorf("serve package index: %w", err)
	}
	defer func() { err = errors.Join(err, packages.Close()) }()
	err = b.Build(ctx, engine.BuildSpec{
		Context: d.Files,
		Tags:    []string{ref, latest},
		Args: map[string]string{
			"BASE":          cmp.Or(opts.Base, "sandfarm/base:latest"),
			"PIP_INDEX_URL": packages.URL(), "PIP_TRUSTED_HOST": "127.0.0.1",
			"NPM_REGISTRY": packages.NpmURL(),
		},
		Labels:  map[string]string{engine.LabelHash: d.Hash},
		Network: "host",
	}, progress)
	if err != nil {
		return "", fmt.Errorf("build image %s: %w", name, err)
	}
	return ref, nil
}
