// Package client is the Go client of a Sandfarm: create sandboxes, run code and commands in them, follow a job's events,
// move files and download artifacts. It uses only the public API and has no state but its connections: a Client may be
// used by any number of goroutines.
//
// It is used from a checkout of Sandfarm, and needs no other module but one for WebSockets. In your own module:
//
//	go mod edit -replace github.com/sandfarm/sandfarm=/path/to/the/checkout
//	go mod tidy # once a file imports github.com/sandfarm/sandfarm/client
//
// Begin with [New]. Everything that takes time is a job: [Client.Run], [Client.Execute] and their like return it as it was accepted, or with
// [WithWait] when it is final; [Client.Wait] waits for one, [Client.Events] follows it, [Failure] says whether the farm could complete
// it. [Client.Files] are the files of a workspace, [Client.FS] all files of a sandbox, [Client.StartProcess] and [Client.DialPort] reach what runs
// beside jobs. Requests and answers are the types of package wire. Lists are iterators.
//
// A request that starts work carries an Idempotency-Key, so a retry after a broken connection runs nothing twice. Reads
// and those POSTs are retried, a few times with backoff, when the connection breaks, the farm answers 503, or a proxy 502 or 504. Every request
// but an upload is retried after a 429. A Retry-After is honoured; if it is longer than 10 seconds, the error is returned
// at once. Errors of the farm are *Error.
//
// An exception in the code or a failed command is a result, not an error: see [wire.ExecuteResult].
package client
