// Package store keeps Sandfarm's records in Redis: jobs, their requests, events and checkpoints, sandboxes and the line
// of jobs before each, artifacts, workers and locks.
//
// It promises that every change of a state is one Lua script that compares before it sets, by the transition tables of
// package farm and with the attempt number as the fence; that what Accept returned is in Redis; and that a record is
// found only under its own tenant. All keys of a tenant carry the hash tag {tenant}, so a script touches one slot. Times
// are microseconds since 1970 in fields of hashes; what never changes is one JSON field.
//
// It does not hand out work (package queue does) and does not decide what to do with it. Timeouts of single commands are
// those of the client it is given. Servers without background expiry of keys (miniredis) have to be told of the time.
package store
