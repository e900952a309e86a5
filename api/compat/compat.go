// Package compat lists the toolsets of older systems that the farm serves. Each system has a package of its own below this one.
package compat

import (
	"github.com/sandfarm/sandfarm/api/compat/dockersandbox"
	"github.com/sandfarm/sandfarm/api/compat/mcpsandbox"
	"github.com/sandfarm/sandfarm/api/compat/notebook"
	"github.com/sandfarm/sandfarm/api/compat/pythonenv"
	"github.com/sandfarm/sandfarm/api/compat/toolset"
)

// Toolsets makes all toolsets, in the order in which help and documentation list them.
func Toolsets() []*toolset.Toolset {
	return []*toolset.Toolset{mcpsandbox.New(), dockersandbox.New(), pythonenv.New(), notebook.New()}
}

// Bare is the name of the toolset that is also served over SSE at /sse, without a name in the path: the system it stands for
// had no other address.
const Bare = pythonenv.Name
