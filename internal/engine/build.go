package engine

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/docker/docker/api/types/build"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// BuildSpec describes a build.
type BuildSpec struct {
	Context    fs.FS             // sent as a whole
	Dockerfile string            // path in it; empty: "Dockerfile"
	Tags       []string          // names of the image
	Args       map[string]string // build arguments; not kept in the image unless the Dockerfile does so
	Labels     map[string]string
	Network    string // of the build's steps, such as "host"; empty: the engine's default
	NoCache    bool
}

// Build builds an image with the classic builder, which every engine has. progress gets each line and the number of started steps; it may
// be nil. The error of a failed step has the end of its output.
func (e *Engine) Build(ctx context.Context, spec BuildSpec, progress func(farm.Progress)) error {
	args := make(map[string]*string, len(spec.Args))
	for name, value := range spec.Args {
		args[name] = &value
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := packFS(w, spec.Context)
		packed <- err
		_ = w.CloseWithError(err) // a pipe's writer never fails to close
	}()
	err := e.call(ctx, buildTimeout, "build image", func(ctx context.Context) error {
		resp, err := e.cli.ImageBuild(ctx, r, build.ImageBuildOptions{
			Version: build.BuilderV1, Dockerfile: spec.Dockerfile, Tags: spec.Tags, BuildArgs: args, Labels: spec.Labels,
			NetworkMode: spec.Network, NoCache: spec.NoCache, Remove: true, ForceRemove: true,
		})
		return follow(resp.Body, err, progress)
	})
	_ = r.Close() // ends the packer if the engine stopped reading
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		return errors.Join(err, packErr)
	}
	return err
}

// packFS writes a tree as a tar, with fixed owners and times, so that the builder's cache hits.
func packFS(to io.Writer, tree fs.FS) error {
	w := tar.NewWriter(to)
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		if d.IsDir() {
			return w.WriteHeader(&tar.Header{Name: path + "/", Typeflag: tar.TypeDir, Mode: 0o755})
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s is not a regular file", path)
		}
		data, err := fs.ReadFile(tree, path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: path, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return fmt.Errorf("pack build context: %w", err)
	}
	return nil
}
