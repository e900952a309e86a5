// Package store keeps Sandfarm's records in Redis. Store puts four packages together: jobs, sandboxes, nodes and tenants. names.go has the names
// of their types, so callers import this package alone. Each is a folder with its Go files and its Lua scripts, which are called by the names of
// their files; a prelude in each has what its scripts share. They stand on package db; internal/store/db/keys.go has every key. This folder itself has the locks, the
// schema and its migrations.
//
// It promises that every change of a state is one Lua script that compares before it sets, by the transition tables of package farm and
// with the attempt number as the fence; that what Accept returned is in Redis; and that a record is found only under its own tenant. All
// keys of a tenant carry the hash tag {tenant}, so a script touches one slot, and that of a queue if it enqueues a task. Times are microseconds
// since 1970 in fields of hashes; what never changes is one JSON field.
//
// Values that are too large for Redis are documents in the object store (Options.Documents): requests, results, and all but the newest events of
// a job. The records refer to them, and readers do not notice. The index "docs" of a tenant says when those of a record are removed.
//
// Names of keys and fields in Redis are stored data and never change, so some of them are older than the words of the code: the FIFO is "line", a
// parked job "held", a queue slot "out".
//
// It does not move tasks (package queue does) and does not decide what to do with a job. Timeouts of single commands are those of the
// client. A server that does not expire keys on its own (miniredis) needs its clock set.
package store
