// Package scheduler runs the farm's periodic loops: it closes sandboxes at their deadline, enqueues jobs that are in no queue, lets other workers
// take over the jobs of dead ones, and removes what is old. Any number of schedulers may run; one leads, by a lock that it renews.
//
// It promises that no sandbox outlives its deadline and no accepted job is forgotten, whatever crashes.
package scheduler
