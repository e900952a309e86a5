// Package client is the Go client of a Sandfarm: create sandboxes, run code and commands in them, follow a job's events,
// move files and download artifacts. It speaks the public contract only and holds no state but its connections: a
// Client may be used by any number of goroutines.
//
// A request that starts work carries an Idempotency-Key, so a retry after a broken connection runs nothing twice. Reads
// and those POSTs are retried, a few times and with growing pauses, when the connection breaks or the farm answers 503.
// Every request but an upload is retried when the farm refuses it as one too many (429). A Retry-After is honoured; if it
// is longer than 10 seconds, the error is returned at once. Errors of the farm are *Error.
//
// That code raised or a command failed is a result and not an error: see [wire.ExecuteResult].
package client
