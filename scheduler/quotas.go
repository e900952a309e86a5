package scheduler

import (
	"context"
	"errors"
	"fmt"
)

// driftNodes is the index of sandboxes by node, in the metric of wrong counts.
const driftNodes = "nodes"

// checkQuotas compares the counts behind the quotas of each tenant with its records, repairs them, and adds what the tenant stores to its
// usage.
func (s *Scheduler) checkQuotas(ctx context.Context) error {
	return s.each(ctx, func(ctx context.Context, tenant string) error {
		drift, err := s.deps.Quotas.RepairUse(ctx, tenant)
		for name, by := range drift {
			s.seen.drift.WithLabelValues(name).Inc()
			s.log.WarnContext(ctx, "a count behind a quota was wrong and is repaired", "tenant", tenant, "count", name, "too_high_by", by)
		}
		if err != nil {
			err = fmt.Errorf("repair use of quotas of tenant %s: %w", tenant, err)
		}
		if stored := s.deps.Quotas.AddStored(ctx, tenant); stored != nil {
			err = errors.Join(err, fmt.Errorf("add what tenant %s stores to its usage: %w", tenant, stored))
		}
		return err
	})
}
