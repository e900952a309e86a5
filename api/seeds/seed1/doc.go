// Package seed1 is the toolset "sandbox": the tools of an older system with named sandboxes, whose files lie in /app/results
// and have links. Its tools are served by POST /mcp/tools/<tool> as well, where refusals have a status of HTTP.
package seed1
