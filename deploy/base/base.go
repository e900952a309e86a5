// Package base makes sure that an engine has the base image of the farm's images: it pulls the image from a registry, or builds it
// from Debian's packages with debootstrap if no registry answers. Either is a Debian with Python 3.13.
package base

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// DefaultRef is the name of the base image in the engine.
	DefaultRef = "sandfarm/base:latest"
	// DefaultSource is the image of a registry that is tried first.
	DefaultSource = "python:3.13-slim"
	// DefaultSuite is the Debian release that debootstrap installs: the one with Python 3.13.
	DefaultSuite = "trixie"

	// answerTimeout is how long a registry may take until its first response: connections to an unreachable one often just hang.
	// After the first response the pull has no time limit.
	answerTimeout = 15 * time.Second
)

// Engine is the part of a container engine that this package uses.
type Engine interface {
	HasImage(ctx context.Context, ref string) (bool, error)
	Pull(ctx context.Context, ref string, progress func(farm.Progress)) error
	Tag(ctx context.Context, ref, tag string) error
	Importer
}

// Options set where the base comes from. The zero value is the default.
type Options struct {
	Ref         string       // name in the engine; empty: DefaultRef
	Source      string       // image of a registry; empty: DefaultSource; "none": do not try one
	Suite       string       // Debian release; empty: DefaultSuite
	Mirror      string       // Debian mirror; empty: debootstrap's default
	Debootstrap string       // program; empty: "debootstrap" in PATH
	WorkDir     string       // directory for the tree, about 300 MiB, on a file system that allows devices; empty: the system's temporary directory
	Logger      *slog.Logger // nil: nothing is logged
}

// EnsureBase makes sure that the engine has the base image and returns its name. An existing image is kept. Progress may be nil.
func EnsureBase(ctx context.Context, e Engine, opts Options, progress func(farm.Progress)) (string, error) {
	if progress == nil {
		progress = func(farm.Progress) {}
	}
	log := opts.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ref := cmp.Or(opts.Ref, DefaultRef)
	there, err := e.HasImage(ctx, ref)
	if err != nil {
		return "", fmt.Errorf("look for base image: %w", err)
	}
	if there {
		return ref, nil
	}
	var pullErr error
	if source := cmp.Or(opts.Source, DefaultSource); source != "none" {
		if pullErr = pull(ctx, e, source, ref, progress); pullErr == nil {
			return ref, nil
		}
		if farm.CodeOf(pullErr) == farm.CodeUnavailable && ctx.Err() == nil && pingless(ctx, e, ref) {
			return "", pullErr
		}
		log.WarnContext(ctx, "registry has no base image for us; making it with debootstrap", "source", source, "error", pullErr)
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("make base image: %w", err)
	}
	if err := debootstrap(ctx, e, ref, opts, progress); err != nil {
		return "", errors.Join(fmt.Errorf("make base image: %w", err), pullErr)
	}
	return ref, nil
}

// pingless reports whether the engine itself does not respond: then the failure is not one of the registry.
func pingless(ctx context.Context, e Engine, ref string) bool {
	_, err := e.HasImage(ctx, ref)
	return err != nil
}

// errSilent means that a registry did not answer in time.
var errSilent = errors.New("the registry did not answer in time")

// pull pulls the registry's image and tags it.
func pull(ctx context.Context, e Engine, source, ref string, progress func(farm.Progress)) error {
	progress(farm.Progress{Message: "Asking the registry for " + source})
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(answerTimeout, func() { cancel(errSilent) })
	defer silent.Stop()
	err := e.Pull(inner, source, func(p farm.Progress) {
		silent.Stop()
		progress(p)
	})
	if err != nil && errors.Is(context.Cause(inner), errSilent) {
		err = errSilent
	}
	if err != nil {
		return fmt.Errorf("pull %s: %w", source, err)
	}
	return e.Tag(ctx, source, ref)
}
