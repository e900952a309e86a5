// Package seed2 is the toolset "docker-sandbox": the tools of "Docker Code Sandbox MCP", in which a model gets a container
// with a workspace, writes and copies files into it, runs commands, and takes files out. What the seed called a workspace of
// a shared container is a sandbox of its own here, so that workspaces do not see each other. Paths are the seed's: the
// workspace lies under /app/workspaces/<workspace_id>, or /app where there is none.
package seed2
