// Package pythonenv stands for the system "Python MCP Sandbox" (python-mcp-sandbox). It is the toolset "python-env": four tools
// to create an environment, install packages and poll for them, run code, and get links to the files it wrote.
package pythonenv
