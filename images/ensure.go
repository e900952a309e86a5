package images

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandfarm/sandfarm/deploy/base"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
)

// Engine is the part of an engine that building an image and its base needs.
type Engine interface {
	Builder
	base.Engine
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
		if _, err := base.EnsureBase(ctx, e, base.Options{Source: source, Logger: opts.Logger}, progress); err != nil {
			return "", false, fmt.Errorf("make base image: %w", err)
		}
	}
	if dir, err := os.UserCacheDir(); err == nil { // on this host, like the engine's images
		opts.Cache = cmp.Or[index.Cache](opts.Cache, index.NewDir(filepath.Join(dir, "sandfarm", "packages")))
	}
	ref, err = Build(ctx, name, e, opts, progress)
	return ref, !there, err
}
