// Package toolset is what the toolsets of older systems are made of: sets of tools with those systems' own names,
// parameters and answers, over the farm's verbs. A toolset is served over streamable HTTP, SSE and stdio by api/mcp, and its
// tools can be called one by one, for routes that have another form. It has no rules of its own: each tool is an adapter
// over a Farm, which the server fills with api/service and "sandfarm mcp" with the REST client.
package toolset
