// Package client is the Go client of a Sandfarm: create sandboxes, run code and commands in them, follow a job's events,
// move files and download artifacts. It speaks the public contract only and holds no state but its connections: a
// Client may be used by any number of goroutines.
//
// A request that starts work is given an Idempotency-Key, so repeating it after a broken connection runs nothing twice.
// Reads and those POSTs are repeated, a few times and with growing pauses, when the connection breaks or the farm
// answers 503; nothing else is. Errors of the farm are *Error.
//
// That code raised or a command failed is a result and not an error: see [wire.ExecuteResult].
package client
