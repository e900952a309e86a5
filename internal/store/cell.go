package store

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// cellPage is how many jobs of a sandbox QueuedCells reads at once.
const cellPage = 100

// QueuedCells lists the cells of notebooks that wait in the FIFO of a sandbox, the newest first: all, or those of one session.
func (s *Store) QueuedCells(ctx context.Context, sandbox farm.Ref, session string) ([]farm.Ref, error) {
	filter := JobFilter{SandboxID: sandbox.ID, States: []farm.JobState{farm.JobQueued}, Kinds: []farm.JobKind{farm.KindExecute}}
	page := Page{Limit: cellPage}
	var out []farm.Ref
	for {
		jobs, next, err := s.Jobs(ctx, sandbox.Tenant, filter, page)
		if err != nil {
			return nil, err
		}
		for _, job := range jobs {
			if c := job.Cell(); c != nil && (session == "" || c.Session == session) {
				out = append(out, job.Ref())
			}
		}
		if next == "" {
			return out, nil
		}
		page.Cursor = next
	}
}
