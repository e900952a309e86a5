package egress

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
)

// vault has the secrets of one sandbox.
type vault struct {
	sealed []byte // what they were opened from
	values map[string]string
	issuer *secret.Issuer
}

// addSecrets adds the secrets of a sandbox to its rules. Without their values, which is an error, their hosts are not reached. The caller
// holds x.rules.
func (x *Exit) addSecrets(ctx context.Context, s *farm.Sandbox, rules *egressproxy.Rules) error {
	if len(s.Spec.Secrets) == 0 {
		return nil
	}
	var err error
	if opened, problem := x.egress.unseal(ctx, s, x.vault); problem == nil {
		x.vault = opened
	} else if x.vault == nil { // values that were known are used until there are others
		err = problem
	}
	for _, one := range s.Spec.Secrets {
		added := egressproxy.Secret{Secret: one}
		if x.vault != nil {
			added.Value = x.vault.values[one.Name]
		}
		rules.Secrets = append(rules.Secrets, added)
	}
	if x.vault != nil {
		rules.Certify = x.vault.issuer.Certify
	}
	return err
}

// unseal reads the secrets of a sandbox, and opens them if they are not those of a vault that is known; nil: none is.
func (e *Egress) unseal(ctx context.Context, s *farm.Sandbox, known *vault) (*vault, error) {
	sealed, err := e.deps.Records.SandboxSecrets(ctx, s.Ref())
	if err != nil {
		return nil, err
	}
	if known != nil && bytes.Equal(known.sealed, sealed) {
		return known, nil
	}
	bundle, err := e.deps.Secrets.Open(s.Ref(), sealed)
	if err != nil {
		return nil, err
	}
	if bundle.Authority == nil {
		return nil, fmt.Errorf("the sandbox has no authority: %w", secret.ErrSealed)
	}
	issuer, err := secret.NewIssuer(bundle.Authority, time.Now)
	if err != nil {
		return nil, err
	}
	return &vault{sealed: sealed, values: bundle.Values, issuer: issuer}, nil
}
