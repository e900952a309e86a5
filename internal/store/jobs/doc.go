// Package jobs keeps jobs: their records, requests, events, checkpoints, artifacts and callbacks, the FIFO of each sandbox, the shares of queues, and
// the watches of those who wait.
//
// It needs the other packages. A job that is accepted may make its sandbox, and a claim, a requeue or an end changes its state: its scripts use the prelude of
// package sandboxes. What a job stores is charged to its tenant: they use that of package tenants, whose functions bound what is accepted. A
// claim asks package nodes whether a worker is alive.
package jobs

import (
	"embed"
	"io/fs"

	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/store/nodes"
)

//go:embed *.lua
var scripts embed.FS

// Lua has the scripts, for db.New.
func Lua() fs.FS { return scripts }

// Store reads and writes jobs. It is safe for concurrent use.
type Store struct {
	*db.DB
	nodes     *nodes.Store
	hub       *hub
	manifests *manifestCache
	waiting   *waitingTenants
}

// New makes a Store.
func New(d *db.DB) *Store {
	return &Store{
		DB: d, nodes: nodes.New(d), hub: newHub(d.Listen, d.Farm(db.FarmWatch, "")), manifests: newManifestCache(),
		waiting: &waitingTenants{queues: map[string]tenantsOfQueue{}},
	}
}

// Close ends the watches.
func (s *Store) Close() error { return s.hub.close() }
