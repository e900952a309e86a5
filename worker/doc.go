// Package worker takes jobs from the queues and runs them in sandboxes of its engine. It owns the life of a sandbox's
// container (create, adopt, close), the stream to its agent, and the way of output and files to the object store.
//
// It promises: a job's effect is committed once (the attempt number is the fence); a worker that dies is replaced by
// another that attaches to the same execution and reads on; nothing that a sandbox says is trusted or touches the host's
// files. It keeps no state of its own that matters: any worker of the same engine can take over.
package worker
