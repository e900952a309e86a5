// Package conformancetest tests the MCP front end from outside: it runs the official conformance runner, the Inspector and
// the official SDKs, which deploy/setup.sh installs, and checks their results. Only tests use it. Its own tests serve the
// fixtures of the runner's scenarios on the transport, guards and extensions of the farm's tools.
package conformancetest
