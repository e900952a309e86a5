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

// ErrNoLifecycle says that the service keeps no lifecycle rules, or not for this account. It will not become better by
// trying again.
var ErrNoLifecycle = errors.New("the object store keeps no lifecycle rules for us")

// noRules is the code of the answer of a bucket that has no rules yet.
const noRules = "NoSuchLifecycleConfiguration"

// LifecycleRule lets the service itself remove what nobody else did.
type LifecycleRule struct {
	ID     string // names the rule in the bucket; needed
	Prefix string // of the keys that it is about; needed
	// Days is how old an object is when it is removed; at least 1.
	Days int
	// AbortDays is how old an upload is that was never brought to an end when it is aborted; at least 1. Not every
	// service knows that of a rule, see AbortUploads.
	AbortDays int
}

func (r LifecycleRule) validate() error {
	if r.ID == "" || r.Prefix == "" || r.Days < 1 || r.AbortDays < 1 {
		return fmt.Errorf("check lifecycle rule %q: id, prefix %q, days %d and days of uploads %d are all needed", r.ID, r.Prefix, r.Days, r.AbortDays)
	}
	return nil
}

// EnsureLifecycle sees to it that the bucket has these rules, and says whether it had to change anything. Rules of other
// ids stay as they are. One that is there with more days keeps them: objects may have been made to live so long.
// ErrNoLifecycle when the service does not take rules.
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

// into puts the rule into a configuration, and says whether that changed it. What a service has dropped of it, such as
// the aborting of uploads, is not missed: it would drop it again.
func (r LifecycleRule) into(config *lifecycle.Configuration) bool {
	at := slices.IndexFunc(config.Rules, func(there lifecycle.Rule) bool { return there.ID == r.ID })
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
	if there.Status == "Enabled" && prefix == r.Prefix && int(there.Expiration.Days) == days {
		return false
	}
	*there = lifecycle.Rule{
		ID: r.ID, Status: "Enabled", RuleFilter: lifecycle.Filter{Prefix: r.Prefix},
		Expiration:                     lifecycle.Expiration{Days: lifecycle.ExpirationDays(days)},
		AbortIncompleteMultipartUpload: lifecycle.AbortIncompleteMultipartUpload{DaysAfterInitiation: lifecycle.ExpirationDays(r.AbortDays)},
	}
	return true
}

// lifecycleError tells a service that does not take rules from one that does not answer.
func lifecycleError(ctx context.Context, err error, doing string) error {
	switch minio.ToErrorResponse(err).StatusCode {
	case http.StatusNotImplemented, http.StatusMethodNotAllowed, http.StatusForbidden, http.StatusBadRequest:
		return fmt.Errorf("%s: %w: %w", doing, ErrNoLifecycle, err)
	default:
		return toFarm(ctx, err, doing)
	}
}
