// Package bridge serves a farm's MCP tools to one client over stdio, for programs that start their servers themselves. The
// tools are those of api/mcp, over a farm that is reached by its REST API, so the bridge can do nothing that the caller's
// key may not do. Of all interfaces only it reads and writes files of the caller's machine, below directories that the caller
// names. It has no state beyond a call.
package bridge
