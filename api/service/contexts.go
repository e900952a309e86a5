package service

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// CodeContexts lists the contexts of a sandbox in which code runs, the oldest first.
func (s *Service) CodeContexts(ctx context.Context, tenant, sandboxID string) ([]farm.CodeContext, error) {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return nil, err
	}
	return a.Contexts(ctx)
}

// CreateContext makes a context in which code runs, and returns it with its directory. Creating one again changes nothing.
func (s *Service) CreateContext(ctx context.Context, tenant, sandboxID string, c farm.CodeContext) (farm.CodeContext, error) {
	if err := checkContext(c.Name); err != nil {
		return c, err
	}
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return c, err
	}
	return a.CreateContext(ctx, c)
}

// RemoveContext ends a context and the code that runs in it.
func (s *Service) RemoveContext(ctx context.Context, tenant, sandboxID, name, language string) error {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err != nil {
		return err
	}
	return a.RemoveContext(ctx, name, language)
}
