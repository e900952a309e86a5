package blob

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/lifecycle"
)

// ErrNoLifecycle means that the service has no lifecycle rules, or not for this account. A retry does not help.
var ErrNoLifecycle = errors.New("the object store does not support lifecycle rules for this account")

// noRules is the error code of a bucket without rules.
const noRules = "NoSuchLifecycleConfiguration"

// LifecycleRule lets the service itself remove leftovers. A rule with an ID only is one that the bucket must not have. There is no rule for uploads
// alone: MinIO refuses it.
type LifecycleRule struct {
	ID     string // identifies the rule in the bucket; required
	Prefix string // of the keys that it applies to; required
	// Days is the age at which an object is removed; at least 1.
	Days int
	// AbortDays is the age at which an incomplete upload is aborted; at least 1. Not every service supports this, see
	// AbortUploads.
	AbortDays int
}

// removed reports whether the rule is one that the bucket must not have.
func (r LifecycleRule) removed() bool { return r == LifecycleRule{ID: r.ID} }

func (r LifecycleRule) validate() error {
	if r.ID == "" || !r.removed() && (r.Prefix == "" || r.Days < 1 || r.AbortDays < 1) {
		return fmt.Errorf("check lifecycle rule %q: id, prefix %q, days %d and days of uploads %d are all needed", r.ID, r.Prefix, r.Days, r.AbortDays)
	}
	return nil
}

// EnsureLifecycle makes sure that the bucket has these rules, or not (LifecycleRule), and reports whether it changed anything. Rules with other ids are
// kept. An existing rule with more days keeps them: objects may rely on it. ErrNoLifecycle if the service does not support
// rules.
func (s *Store) EnsureLifecycle(ctx context.Context, rules ...LifecycleRule) (changed bool, err error) {
	for _, r := range rules {
		if err := r.validate(); err != nil {
			return false, err
		}
	}
	callCtx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	config, err := s.client.GetBucketLifecycle(callCtx, s.cfg.Bucket)
	switch {
	case minio.ToErrorResponse(err).Code == noRules:
		config = lifecycle.NewConfiguration()
	case err != nil:
		return false, lifecycleError(ctx, err, "read lifecycle of bucket")
	}
	for _, r := range rules {
		changed = r.into(config) || changed
	}
	if !changed {
		return false, nil
	}
	if err := s.client.SetBucketLifecycle(callCtx, s.cfg.Bucket, config); err != nil {
		return false, lifecycleError(ctx, err, "set lifecycle of bucket")
	}
	return true, nil
}

// into adds the rule to a configuration, or removes it, and reports whether that changed it. Parts that a service dropped, such as the abort of
// uploads, are not added again: it would drop them again. An age of uploads that is too low is raised.
func (r LifecycleRule) into(config *lifecycle.Configuration) bool {
	at := slices.IndexFunc(config.Rules, func(there lifecycle.Rule) bool { return there.ID == r.ID })
	if r.removed() {
		if at >= 0 {
			config.Rules = slices.Delete(config.Rules, at, at+1)
		}
		return at >= 0
	}
	if at < 0 {
		config.Rules = append(config.Rules, lifecycle.Rule{ID: r.ID})
		at = len(config.Rules) - 1
	}
	there := &config.Rules[at]
	days := max(r.Days, int(there.Expiration.Days))
	prefix := there.RuleFilter.Prefix
	if prefix == "" {
		prefix = there.Prefix
	}
	abort := int(there.AbortIncompleteMultipartUpload.DaysAfterInitiation)
	if (abort == 0 || abort >= r.AbortDays) && there.Status == "Enabled" && prefix == r.Prefix && int(there.Expiration.Days) == days {
		return false
	}
	*there = lifecycle.Rule{
		ID: r.ID, Status: "Enabled", RuleFilter: lifecycle.Filter{Prefix: r.Prefix},
		Expiration:                     lifecycle.Expiration{Days: lifecycle.ExpirationDays(days)},
		AbortIncompleteMultipartUpload: lifecycle.AbortIncompleteMultipartUpload{DaysAfterInitiation: lifecycle.ExpirationDays(r.AbortDays)},
	}
	return true
}

// lifecycleError distinguishes a service that does not support rules from one that does not respond.
func lifecycleError(ctx context.Context, err error, doing string) error {
	switch minio.ToErrorResponse(err).StatusCode {
	case http.StatusNotImplemented, http.StatusMethodNotAllowed, http.StatusForbidden, http.StatusBadRequest:
		return fmt.Errorf("%s: %w: %w", doing, ErrNoLifecycle, err)
	default:
		return toFarm(ctx, err, doing)
	}
}
