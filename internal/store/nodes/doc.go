// Package nodes keeps what concerns nodes and workers: heartbeats, leases of nodes, reservations of memory and cores, leases of GPUs, the warm pool,
// drains, events of the fleet, what workers say of the last hour, and the authorities of the live path.
//
// It needs none of the other packages. Its keys are in slots of the farm, so no script here touches the records of a tenant.
package nodes

import (
	"embed"
	"io/fs"

	"github.com/sandfarm/sandfarm/internal/store/db"
)

//go:embed *.lua
var scripts embed.FS

// Lua has the scripts, for db.New.
func Lua() fs.FS { return scripts }

// Store reads and writes what concerns nodes. It is safe for concurrent use.
type Store struct{ *db.DB }

// New makes a Store.
func New(d *db.DB) *Store { return &Store{d} }
