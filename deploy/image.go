package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

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

// buildImage builds a sandbox image and its base unless the engine has it.
func buildImage(ctx context.Context, name string, out io.Writer) error {
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
	_, _, err = images.Ensure(ctx, name, images.Docker{Engine: e}, s.Images.Base, options, func(p farm.Progress) { _, _ = fmt.Fprintln(out, p.Message) })
	return err
}
