package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
)

// Builder is the part of an engine that building needs.
type Builder interface {
	HasImage(ctx context.Context, ref string) (bool, error)
	// Network makes a network in which the steps of a build reach exit alone. ref is any image of the engine.
	Network(ctx context.Context, ref string, exit http.Handler) (Network, error)
	Build(ctx context.Context, spec engine.BuildSpec, progress func(farm.Progress)) error
	Tag(ctx context.Context, ref, tag string) error
}

// Options of a build. The zero value builds on sandfarm/base:latest with packages from PyPI.
type Options struct {
	Base     string          // image to build on; empty: "sandfarm/base:latest". A change of it alone does not build again
	IndexURL string          // Python package index; empty: PyPI
	FilesURL string          // where the index's links point, if not to its own host; empty: PyPI's
	NpmURL   string          // npm registry; empty: npm's own
	Hosts    []farm.HostRule // what the steps reach beside the index; empty: Debian's mirrors
	Cache    index.Cache     // keeps downloads for the next build; nil: no cache
	Logger   *slog.Logger    // nil: nothing is logged
}

// Build ensures that the engine has the current version of the image, and returns its name there. It also gets the tag
// ":latest". An existing image is not rebuilt. The steps of the build reach the package index and the hosts of the options, and nothing else.
// Progress may be nil.
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
	from := cmp.Or(opts.Base, baseRef)
	network, err := connect(ctx, b, from, opts)
	if err != nil {
		return "", fmt.Errorf("make the network of a build: %w", err)
	}
	defer func() { err = errors.Join(err, network.Close()) }()
	proxy := "http://" + network.Addr
	err = b.Build(ctx, engine.BuildSpec{
		Context: d.Files,
		Tags:    []string{ref, latest},
		Args: map[string]string{
			"BASE":          from,
			"PIP_INDEX_URL": proxy + agent.PipPath, "PIP_TRUSTED_HOST": "127.0.0.1",
			"NPM_REGISTRY": proxy + agent.NpmPath,
			// The engine knows these: no Dockerfile declares them, and the image does not keep them.
			"http_proxy": proxy, "https_proxy": proxy, "no_proxy": "127.0.0.1",
		},
		Labels:  map[string]string{engine.LabelHash: d.Hash},
		Network: network.Mode,
	}, progress)
	if err != nil {
		return "", fmt.Errorf("build image %s: %w", name, err)
	}
	return ref, nil
}

// Engine is the part of an engine that building an image and its base needs.
type Engine interface {
	Builder
	BaseEngine
}

// Ensure builds an image and its base unless the engine has it; built reports whether it did. Source is the base's
// image in a registry, "none" for one made by debootstrap. Without a cache, packages are kept in the user's cache directory. Progress
// may be nil.
func Ensure(ctx context.Context, name string, e Engine, source string, opts Options, progress func(farm.Progress)) (ref string, built bool, err error) {
	definition, err := Find(name)
	if err != nil {
		return "", false, err
	}
	there, err := e.HasImage(ctx, definition.Ref())
	if err != nil {
		return "", false, fmt.Errorf("look for image %s: %w", definition.Ref(), err)
	}
	if !there { // the base is ensured only when needed: without a registry that costs a timeout
		if _, err := EnsureBase(ctx, e, BaseOptions{Source: source, Logger: opts.Logger}, progress); err != nil {
			return "", false, fmt.Errorf("make base image: %w", err)
		}
	}
	if dir, err := os.UserCacheDir(); err == nil { // on this host, like the engine's images
		opts.Cache = cmp.Or[index.Cache](opts.Cache, index.NewDir(filepath.Join(dir, "sandfarm", "packages")))
	}
	ref, err = Build(ctx, name, e, opts, progress)
	return ref, !there, err
}
