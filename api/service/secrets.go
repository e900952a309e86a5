package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/store"
)

const noSecretKey = "this farm keeps no secrets: its operator sets a key in the setting secrets.key"

// secrets checks the secrets of a new sandbox, whose network and hosts are in spec. Their values and the authority of their hosts are in the
// bundle only.
func (s *Service) secrets(p *problems, r wire.CreateRequest, spec farm.SandboxSpec) ([]farm.Secret, secret.Bundle) {
	given := r.Secrets
	switch {
	case len(given) == 0:
		return nil, secret.Bundle{}
	case s.options.Secrets == nil:
		p.addf("/secrets", noSecretKey)
		return nil, secret.Bundle{}
	case len(given) > s.limits.MaxSecrets:
		p.addf("/secrets", "there are %d secrets; at most %d are allowed", len(given), s.limits.MaxSecrets)
		return nil, secret.Bundle{}
	case spec.Network != farm.NetworkAllowlist:
		p.addf("/secrets", "secrets need the network mode allowlist")
		return nil, secret.Bundle{}
	}
	var out []farm.Secret
	bundle, hosts, places := secret.Bundle{Values: map[string]string{}}, []string{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		one, pointer := given[name], strict.Pointer("/secrets", farm.Shorten(name))
		if len(name) > maxVariableName {
			p.addf(pointer, "the name of the secret %q has %d bytes; at most %d are allowed", farm.Shorten(name), len(name), maxVariableName)
			continue
		}
		if !envName.MatchString(name) {
			p.addf(pointer, "%q cannot be the name of a secret, which is that of an environment variable: use letters, digits and underscores, and no digit at the beginning", farm.Shorten(name))
			continue
		}
		if _, twice := r.Env[name]; twice {
			p.addf(pointer, "%s is in env too, and a variable has one value", name)
		}
		host, err := farm.ParseSecretHost(one.Host)
		p.check(pointer+"/host", err)
		if err == nil && !p.of("/network", "/allow_hosts") && !reaches(spec.AllowHosts, host) {
			p.addf(pointer+"/host", "no rule of allow_hosts allows %s over HTTPS: add it there", host)
		}
		header, scheme, err := farm.ParseSecretHeader(one.Header)
		p.check(pointer+"/header", err)
		p.check(pointer+"/value", farm.CheckSecretValue(name, one.Value, s.limits.MaxSecretBytes))
		place := host + " " + strings.ReplaceAll(strings.ToLower(header), "_", "-")
		if other, twice := places[place]; twice && err == nil {
			p.addf(pointer+"/header", "the secret %s sets this header for this host already", other)
		}
		places[place] = name
		hosts = append(hosts, host)
		bundle.Values[name] = one.Value
		out = append(out, farm.Secret{Name: name, Host: host, Header: header, Scheme: scheme})
	}
	if p.of("/secrets") {
		return nil, secret.Bundle{}
	}
	err := farm.CheckHostSecrets(out, bundle.Values, nil)
	if p.check("/secrets", err); err != nil {
		return nil, secret.Bundle{}
	}
	if bundle.Authority, err = secret.NewAuthority(hosts, s.Now()); err != nil {
		p.check("/secrets", err)
	}
	return out, bundle
}

// reaches reports whether a rule allows requests to a host with a secret.
func reaches(rules []string, host string) bool {
	return slices.ContainsFunc(rules, func(text string) bool {
		r, err := farm.ParseHostRule(text)
		return err == nil && r.Allows(host, farm.SecretPort)
	})
}

// seal seals the secrets of a new sandbox; nil: it has none.
func (s *Service) seal(box *farm.Sandbox, b secret.Bundle) ([]byte, error) {
	if len(b.Values) == 0 {
		return nil, nil
	}
	sealed, err := s.options.Secrets.Seal(box.Ref(), b)
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	return sealed, nil
}

func secretNames(secrets []farm.Secret) []string {
	var names []string
	for _, s := range secrets {
		names = append(names, s.Name)
	}
	return names
}

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
		p.check(pointer+"/value", farm.CheckSecretValue(name, given[name].Value, s.limits.MaxSecretBytes))
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
	box, err := s.Store.Sandbox(ctx, ref)
	if err != nil {
		return nil, err
	}
	was, err := s.Store.SandboxSecrets(ctx, ref)
	if err != nil {
		return nil, err
	}
	bundle, err := s.options.Secrets.Open(ref, was)
	if err != nil {
		return nil, farm.Wrap(err, farm.CodeConflict, "The secrets of sandbox %s are lost, or were sealed with a key that this farm no longer has. Create another sandbox.", ref.ID)
	}
	before := maps.Clone(bundle.Values)
	if bundle.Values == nil {
		bundle.Values = map[string]string{}
	}
	for name, value := range values {
		bundle.Values[name] = value.Value
	}
	if err := farm.CheckHostSecrets(box.Spec.Secrets, bundle.Values, before); err != nil {
		return nil, err
	}
	now, err := s.options.Secrets.Seal(ref, bundle)
	return &store.SealedSecrets{Was: was, Now: now}, err
}
