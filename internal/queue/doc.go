// Package queue carries tasks from those who accept jobs to those who run them. It owns asynq, and nothing else imports
// that.
//
// It promises that an enqueued task reaches a handler at least once, soon: the handler of an idle server has it a
// millisecond or two after Enqueue, without polling (see hook). It does not promise once: a lost acknowledgement, a
// crash or a timeout delivers a task again. Handlers look at the job's record, which says whether there is work to do.
package queue
