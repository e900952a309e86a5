// Package conformance holds the tests that look at the MCP front end from outside: the official conformance runner, the
// Inspector and the official SDKs. The runner's scenarios want a server with tools, resources and prompts of its own
// choosing; the tests serve those on the same transport, guards and extensions as the farm's own tools. There is no code
// here that ships.
package conformance
