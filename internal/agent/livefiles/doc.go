// Package livefiles serves files anywhere in a sandbox: in a process of its own, which the agent starts as it starts user code, so that a caller
// reaches through it what the sandbox's user may do, and nothing else. It has no way to the agent: its requests come over a descriptor, and
// the agent reads its answers as it would those of user code, which may kill or replace it at any time.
package livefiles
