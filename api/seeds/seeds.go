// Package seeds knows the toolsets of older systems that the farm serves. Each lives in a package of its own.
package seeds

import (
	"github.com/sandfarm/sandfarm/api/seeds/seed1"
	"github.com/sandfarm/sandfarm/api/seeds/seed2"
	"github.com/sandfarm/sandfarm/api/seeds/seed3"
	"github.com/sandfarm/sandfarm/api/seeds/seed4"
	"github.com/sandfarm/sandfarm/api/seeds/toolset"
)

// Toolsets makes the toolsets, in the order in which they are told.
func Toolsets() []*toolset.Toolset {
	return []*toolset.Toolset{seed1.New(), seed2.Toolset(), seed3.New(), seed4.Toolset()}
}

// Bare is the name of the toolset that is served over SSE at /sse as well, without a name: its system had no other address.
const Bare = seed3.Name
