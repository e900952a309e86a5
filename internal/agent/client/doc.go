// Package client is the worker's side of the agent: it speaks HTTP over a yamux session over one stream. It promises that
// nothing the agent says is trusted: sizes, sequence numbers and error codes are checked. Errors are *farm.Error: the agent's own
// code where it gave one, unavailable where the stream is broken.
package client
