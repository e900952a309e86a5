package service

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/webhook"
)

// checkCallback refuses an address to which no callback may go; none at all is fine. The sender looks again when it
// connects, since names can change their address.
func (s *Service) checkCallback(ctx context.Context, raw string) error {
	if raw == "" {
		return nil
	}
	return webhook.Policy{AllowPrivate: s.options.AllowPrivateCallbacks, Resolver: s.Resolver}.Check(ctx, raw)
}
