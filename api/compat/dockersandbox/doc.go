// Package dockersandbox stands for the system "Docker Code Sandbox MCP". It is the toolset "docker-sandbox": a model gets a
// container with a workspace, writes and copies files into it, runs commands, and copies files out. In the original, workspaces
// shared one container; here each workspace is a sandbox of its own, so workspaces cannot see each other. Paths are those of the
// original: a workspace lies under /app/workspaces/<workspace_id>, or /app where there is no workspace.
package dockersandbox
