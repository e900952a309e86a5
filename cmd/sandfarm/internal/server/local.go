package server

import (
	"context"
	"net/http"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
)

// Local connects verbs to the farm of this machine without its API.
func Local(version string) verbs.OpenLocal {
	return func(ctx context.Context, config string) (*http.Client, func() error, error) {
		s, err := farmd.Load(config)
		if err != nil {
			return nil, nil, err
		}
		return farmd.Operator(ctx, s, version)
	}
}
