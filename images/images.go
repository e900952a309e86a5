// Package images contains the farm's sandbox images and builds them. Each folder is one image: a
// Dockerfile, the files it copies, a README and a smoke test. An image is named by the hash of its sources, so an existing
// image is never rebuilt, and a changed image always has a new name. All are built on one base, which comes from a registry or, without one, from
// Debian's packages.
package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
)

//go:embed node python python-cuda
var files embed.FS

// hashText is how many characters of the hash a tag holds: 48 bits distinguish the builds of one image.
const hashText = 12

// Definition is one image that can be built.
type Definition struct {
	Name        string
	Description string
	Languages   []string
	Hash        string // of its source files, 12 hexadecimal characters
	Files       fs.FS  // the folder: the build's context
}

// Ref is the name of the image in an engine.
func (d Definition) Ref() string { return "sandfarm/" + d.Name + ":" + d.Hash }

// List returns all images that can be built, sorted by name.
func List() ([]Definition, error) {
	folders, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	list := make([]Definition, 0, len(folders))
	for _, folder := range folders {
		d, err := define(folder.Name())
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// Find returns the image with a name; CodeNotFound if there is none.
func Find(name string) (Definition, error) {
	list, err := List()
	if err != nil {
		return Definition{}, err
	}
	names := make([]string, 0, len(list))
	for _, d := range list {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	return Definition{}, farm.NotFoundf("no image %q comes with the farm; there are: %s", name, strings.Join(names, ", "))
}

func define(name string) (Definition, error) {
	tree, err := fs.Sub(files, name)
	if err != nil {
		return Definition{}, fmt.Errorf("open image %s: %w", name, err)
	}
	hash, err := hashOf(tree)
	if err != nil {
		return Definition{}, fmt.Errorf("hash image %s: %w", name, err)
	}
	dockerfile, err := fs.ReadFile(tree, "Dockerfile")
	if err != nil {
		return Definition{}, fmt.Errorf("read image %s: %w", name, err)
	}
	d := Definition{Name: name, Hash: hash, Files: tree, Description: label(string(dockerfile), "sandfarm.description")}
	d.Languages = strings.Split(label(string(dockerfile), "sandfarm.languages"), ",")
	return d, nil
}

// label reads the value of a label from a Dockerfile: name="value".
func label(dockerfile, name string) string {
	_, rest, _ := strings.Cut(dockerfile, name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// notBuilt reports whether a file of a folder does not affect the image.
func notBuilt(name string) bool {
	return slices.Contains([]string{"README.md", "smoke.py"}, path.Base(name))
}

// hashOf hashes the names and contents of an image's source files.
func hashOf(tree fs.FS) (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || notBuilt(name) {
			return err
		}
		data, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(sum, "%d %s %d\n%s", len(name), name, len(data), data)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil))[:hashText], err
}

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
