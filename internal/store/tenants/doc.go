// Package tenants keeps what is counted for tenants: API keys and sessions, quotas and settings, requests that are admitted, usage by day, bytes in
// the object store and in Redis, and the audit.
//
// It imports none of the other packages. Its scripts use the preludes of packages jobs and sandboxes where they bound what is kept: memory_trim.lua and
// trim.lua remove finished jobs and ended sandboxes. The scripts that repair counts read the records of both.
package tenants

import (
	"context"
	"embed"
	"io/fs"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

//go:embed *.lua
var scripts embed.FS

// Lua has the scripts, for db.New.
func Lua() fs.FS { return scripts }

// Store reads and writes what is counted for tenants. It is safe for concurrent use.
type Store struct {
	*db.DB
	dropStrays func(ctx context.Context, sandbox string, job farm.Ref) error
}

// New makes a Store. dropStrays removes the objects of a job that has ended which no record of an artifact names.
func New(d *db.DB, dropStrays func(ctx context.Context, sandbox string, job farm.Ref) error) *Store {
	return &Store{d, dropStrays}
}
