// Package mcpsandbox stands for the system "MCP Sandbox" (mcp-python-sandbox). It is the toolset "sandbox": sandboxes with
// names, whose files lie in /app/results and have links. POST /mcp/tools/<tool> serves the same tools; a refusal there has an
// HTTP status.
package mcpsandbox
