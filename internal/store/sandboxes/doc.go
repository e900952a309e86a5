// Package sandboxes keeps sandboxes: their records and moves from state to state, the index of open ones by node, the log of their connections, their
// sealed secrets, and which job installed which package.
//
// Its scripts use the prelude of package tenants, since a sandbox counts against quotas and memory of its tenant. A move by a job reads the record of
// that job, which must run under its attempt. Package jobs makes sandboxes and changes their states with the prelude here.
package sandboxes

import (
	"embed"
	"io/fs"

	"github.com/sandfarm/sandfarm/internal/store/db"
)

//go:embed *.lua
var scripts embed.FS

// Lua has the scripts, for db.New.
func Lua() fs.FS { return scripts }

// Store reads and writes sandboxes. It is safe for concurrent use.
type Store struct{ *db.DB }

// New makes a Store.
func New(d *db.DB) *Store { return &Store{d} }
