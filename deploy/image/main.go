// Command image builds a sandbox image and its base, as `sandfarm up` does. It is small: on a machine that has neither program nor
// image, `make run` compiles it first, so that the image is built while the program is being compiled.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/config"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
)

// settings are the settings of the program that affect an image, from the same variables.
type settings struct {
	Engine struct {
		Host      string `toml:"host"`
		Namespace string `toml:"namespace"`
	} `toml:"engine"`
	Images struct {
		Base  string          `toml:"base" default:"python:3.13-slim"`
		Hosts []farm.HostRule `toml:"hosts"`
	} `toml:"images"`
	Index index.Config `toml:"index"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "build image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("give the name of one image, such as python")
	}
	var s settings
	if err := config.Load(&s, config.Options{}); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(out, nil))
	e, err := engine.New(engine.Config{Host: s.Engine.Host, Namespace: s.Engine.Namespace, Logger: log})
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	options := images.Options{IndexURL: s.Index.PyPIURL, FilesURL: s.Index.FilesURL, NpmURL: s.Index.NpmURL, Hosts: s.Images.Hosts, Logger: log}
	_, _, err = images.Ensure(ctx, args[0], images.Docker{Engine: e}, s.Images.Base, options, func(p farm.Progress) { _, _ = fmt.Fprintln(out, p.Message) })
	return err
}
