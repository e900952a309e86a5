// Package bridge serves a farm's MCP tools to one client over stdio, for programs that start their servers themselves. The
// tools are those of api/mcp, over a farm that is reached by its REST API, so the bridge can do nothing that the caller's
// key may not do. It alone of all doors reads and writes files of the caller's machine, below directories that the caller
// names. It holds no state but what a call needs.
package bridge
