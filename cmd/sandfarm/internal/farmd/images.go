package farmd

import (
	"context"
	"io"
	"log/slog"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// BuildImage makes sure that the engine has a sandbox image, and the base image below it, and returns its name in the engine. An image
// that exists is kept. Progress goes to out.
func BuildImage(ctx context.Context, s *Settings, e *engine.Engine, name string, log *slog.Logger, out io.Writer) (string, error) {
	say := newConsole(out)
	quiet := say.watch()
	defer quiet()
	ref, _, err := s.builder(e, log)(ctx, name, say.printProgress)
	return ref, err
}

// imageBuilder makes sure that an engine has a sandbox image, and returns its name in the engine, and whether it existed before.
type imageBuilder func(ctx context.Context, name string, progress func(farm.Progress)) (ref string, there bool, err error)

// builder builds images in a Docker engine.
func (s *Settings) builder(e *engine.Engine, log *slog.Logger) imageBuilder {
	options := images.Options{IndexURL: s.Index.PyPIURL, FilesURL: s.Index.FilesURL, NpmURL: s.Index.NpmURL, Hosts: s.Images.Hosts, Logger: log}
	return func(ctx context.Context, name string, progress func(farm.Progress)) (string, bool, error) {
		ref, built, err := images.Ensure(ctx, name, images.Docker{Engine: e}, s.Images.Base, options, progress)
		return ref, !built, err
	}
}

// OpenEngine connects to the Docker engine of the settings, for commands that need nothing else.
func OpenEngine(s *Settings, log *slog.Logger) (*engine.Engine, error) {
	return s.engine(log)
}

// Logger makes the logger of the settings.
func Logger(s *Settings) *slog.Logger { return s.Log.logger() }
