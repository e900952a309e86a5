package keyring

import (
	"context"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// ids are the keys of each tenant in one version of the set, decoded once.
type ids struct {
	version string
	made    map[string][]farm.Key
}

// IDs are the ids of the valid keys of a tenant, in no order; on a farm without keys, "" alone. It fails as Find does if the keys are not known.
func (r *Ring) IDs(ctx context.Context, tenant string) ([]string, error) {
	if err := r.refresh(ctx, time.Now().Add(-fresh)); err != nil {
		return nil, err
	}
	if r.Open() {
		return []string{""}, nil
	}
	var out []string
	for _, caller := range r.Settings {
		if caller.Tenant == tenant {
			out = append(out, caller.KeyID)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ids.made == nil || r.ids.version != r.set.Version {
		r.ids = ids{version: r.set.Version, made: map[string][]farm.Key{}}
		for key := range r.set.All() {
			r.ids.made[key.Tenant] = append(r.ids.made[key.Tenant], key)
		}
	}
	for _, key := range r.ids.made[tenant] {
		if !key.Expired(r.Now()) {
			out = append(out, key.ID)
		}
	}
	return out, nil
}
