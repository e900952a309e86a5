// Package client is the worker's side of the agent protocol: HTTP over a yamux session on one stream. It trusts
// nothing the agent sends: sizes, sequence numbers and error codes are checked. Errors are *farm.Error: the agent's own
// code if it sent one, unavailable if the stream is broken.
package client
