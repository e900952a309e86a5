// Package dispatch connects records and tasks. The scripts of the store enqueue a job in the step that makes it runnable; this package does
// what else follows from the end of a job or of a node, and finds runnable jobs that are in no queue.
//
// It promises that an accepted job gets a task: normally at once, after an outage by Sweep. It has no state that matters: any number of
// processes may dispatch and sweep side by side, since tasks have names and records have fences.
package dispatch
