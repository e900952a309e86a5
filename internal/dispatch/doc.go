// Package dispatch connects records and tasks: it enqueues the jobs that are runnable by their records, and finds runnable jobs that are in no
// queue.
//
// It promises that an accepted job gets a task: normally at once, after an outage by Sweep. It has no state that matters: any number of
// processes may dispatch and sweep side by side, since tasks have names and records have fences.
package dispatch
