package execution

import (
	"errors"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Commit ends a job with finish. A result that is too long for Redis and that the object store does not take is committed abridged: if it does not
// answer, the job fails; if the storage of the tenant is full, the job ends as it did, unless the result was all that was asked for. f
// becomes what was committed.
func Commit(f *store.Finish, finish func(store.Finish) error) error {
	err := finish(*f)
	switch {
	case err == nil || f.Result == nil:
		return err
	case errors.Is(err, blob.ErrNoAnswer):
		why := unstored(err)
		f.Result = Abridged(f.Result, why)
		if f.State == farm.JobCompleted {
			f.State, f.Error = farm.JobFailed, AbridgedError(why)
		}
	case farm.CodeOf(err) == farm.CodeExhausted:
		if f.Result.File != nil || f.Result.Packages != nil {
			f.State, f.Error = farm.JobFailed, &farm.JobError{Code: farm.CodeExhausted, Message: farm.MessageOf(err)}
		}
		f.Result = Abridged(f.Result, StorageFull)
	default:
		return err
	}
	return finish(*f)
}
