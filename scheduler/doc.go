// Package scheduler runs the farm's periodic loops: expiry, re-enqueueing of what no queue holds, taking jobs away from
// dead workers, retention. Any number of schedulers may run; one at a time leads, by a lock that it renews.
//
// It promises that nothing outlives its owner and nothing that was accepted is forgotten, whatever crashed when.
package scheduler
