// Package conformancetest holds the tools to look at the MCP front end from outside: it runs the official conformance runner, the
// Inspector and the official SDKs, which deploy/setup.sh brings, and judges what they found. Only tests use it. Its own
// tests serve the fixtures that the runner's scenarios want on the transport, guards and extensions of the farm's tools.
package conformancetest
