// Package queue moves tasks from the processes that accept jobs to the workers that run them. It owns asynq; no other package imports it.
//
// It promises that an enqueued task reaches a handler at least once, and soon: an idle server starts the handler a millisecond or two after
// Enqueue, without polling (see hook). It does not promise exactly once: after a lost acknowledgement, a crash or a timeout the task is
// delivered again. Handlers read the job's record to see whether there is work to do.
package queue
