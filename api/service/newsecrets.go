package service

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// resealTries is how often new values are written when others change the secrets of the sandbox at the same time.
const resealTries = 5

// checkNewSecrets checks new values for secrets of a sandbox, which must have them: code has read their names from its environment, and its
// certificates are for their hosts.
func (s *Service) checkNewSecrets(ctx context.Context, p *problems, tenant, id string, given map[string]wire.NewSecret) error {
	if len(given) == 0 {
		return nil
	}
	if s.options.Secrets == nil {
		p.addf("/secrets", noSecretKey)
		return nil
	}
	box, err := s.sandbox(ctx, tenant, id)
	if err != nil {
		return err
	}
	names := secretNames(box.Spec.Secrets)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		pointer := strict.Pointer("/secrets", farm.Shorten(name))
		if !slices.Contains(names, name) {
			p.addf(pointer, "this sandbox has no secret %q, and none can be added: create another one", farm.Shorten(name))
			continue
		}
		p.check(pointer+"/value", farm.CheckSecretValue(given[name].Value, s.limits.MaxSecretBytes))
	}
	return nil
}

// patch changes a sandbox. New values go into what is sealed for it now; if that changes meanwhile it is read again.
func (s *Service) patch(ctx context.Context, ref farm.Ref, patch store.SandboxPatch, values map[string]wire.NewSecret) (*farm.Sandbox, error) {
	for try := 0; ; try++ {
		if len(values) > 0 {
			var err error
			if patch.Secrets, err = s.reseal(ctx, ref, values); err != nil {
				return nil, err
			}
		}
		box, err := s.Store.UpdateSandbox(ctx, ref, patch)
		switch {
		case !errors.Is(err, store.ErrSecretsChanged):
			return box, err
		case try == resealTries:
			return nil, farm.Conflictf("The secrets of sandbox %s are being changed by others. Try again.", ref.ID)
		}
	}
}

func (s *Service) reseal(ctx context.Context, ref farm.Ref, values map[string]wire.NewSecret) (*store.SealedSecrets, error) {
	was, err := s.Store.SandboxSecrets(ctx, ref)
	if err != nil {
		return nil, err
	}
	bundle, err := s.options.Secrets.Open(ref, was)
	if err != nil {
		return nil, farm.Wrap(err, farm.CodeConflict, "The secrets of sandbox %s are lost, or were sealed with a key that this farm no longer has. Create another sandbox.", ref.ID)
	}
	if bundle.Values == nil {
		bundle.Values = map[string]string{}
	}
	for name, value := range values {
		bundle.Values[name] = value.Value
	}
	now, err := s.options.Secrets.Seal(ref, bundle)
	return &store.SealedSecrets{Was: was, Now: now}, err
}
