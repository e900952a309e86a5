// Package dispatch is the one place where a record and a task meet: it puts on a queue what the store says is ready, and
// finds what no queue holds.
//
// It promises that an accepted job gets a task: at once as a rule, by Sweep after an outage. It holds no state that
// matters: any number of processes may dispatch and sweep side by side, since tasks have names and records have fences.
package dispatch
