package service

import (
	"context"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// cellPage is how many of the newest jobs of a sandbox are looked through for cells.
const cellPage = 50

// Cell is a job that a client of a notebook asked for.
type Cell struct {
	Job     wire.Job
	Message string // id of the client's message
}

// Cells lists the newest cells of one session of a notebook's client, oldest first.
func (s *Service) Cells(ctx context.Context, tenant, sandboxID, session string) ([]Cell, error) {
	jobs, _, err := s.Store.Jobs(ctx, tenant, store.JobFilter{SandboxID: sandboxID, Kinds: []farm.JobKind{farm.KindExecute}}, store.Page{Limit: cellPage})
	if err != nil {
		return nil, err
	}
	var out []Cell
	for i := len(jobs) - 1; i >= 0; i-- {
		if r := jobs[i].Shown; r != nil && r.Execute != nil && r.Execute.Cell != nil && r.Execute.Cell.Session == session {
			out = append(out, Cell{Job: s.job(ctx, jobs[i]), Message: r.Execute.Cell.Message})
		}
	}
	return out, nil
}
