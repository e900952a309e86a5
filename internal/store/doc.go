// Package store keeps Sandfarm's records in Redis: jobs with their requests, events and checkpoints, sandboxes and the FIFO of jobs of
// each, artifacts, workers, reservations and GPU leases of nodes, the warm pool, and locks. A file holds one record, or one step of a job; the
// Lua scripts lie beside it and begin with its name.
//
// It promises that every change of a state is one Lua script that compares before it sets, by the transition tables of package farm and
// with the attempt number as the fence; that what Accept returned is in Redis; and that a record is found only under its own tenant. All
// keys of a tenant carry the hash tag {tenant}, so a script touches one slot, and that of a queue if it enqueues a task. Times are microseconds
// since 1970 in fields of hashes; what never changes is one JSON field.
//
// Values that are too large for Redis are documents in the object store (Options.Documents): requests, results, and all but the newest events of
// a job. The records refer to them, and readers do not notice. The index "docs" of a tenant says when those of a record are removed.
//
// Scripts with many arguments read them by name: the fields of a struct with lua tags (args.go). Names of keys and fields in Redis are stored data
// and never change, so some of them are older than the words of the code: the FIFO is "line", a parked job "held", a queue slot "out".
//
// It does not move tasks (package queue does) and does not decide what to do with a job. Timeouts of single commands are those of the
// client. A server that does not expire keys on its own (miniredis) needs its clock set.
package store
