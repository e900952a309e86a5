// Package toolset is the shared frame of the toolsets of older systems: sets of tools with those systems' own names, parameters and
// answers, over the farm's verbs. api/mcp serves a toolset over streamable HTTP, SSE and stdio. Routes with another form can call
// single tools. The package has no rules of its own: each tool is an adapter over a Farm, which api/service implements in the server
// and the REST client in "sandfarm mcp".
package toolset
