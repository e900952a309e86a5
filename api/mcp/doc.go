// Package mcp is the farm's second door: its verbs as tools of the Model Context Protocol, by mcp-go. The tools are thin
// adapters over a Farm; nothing of the farm's rules is implemented here. The package serves them over streamable HTTP, for
// clients of every protocol revision since 2024-11-05, and over stdio.
package mcp
