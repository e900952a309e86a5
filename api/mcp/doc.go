// Package mcp serves the farm's verbs as tools of the Model Context Protocol, with mcp-go. The tools are thin adapters over a Farm
// and implement none of the farm's rules. They are served over streamable HTTP, to clients of every protocol revision since
// 2024-11-05, and over stdio. Sets of tools with other shapes (api/compat) use the same transports, and SSE.
package mcp
