// Package worker takes jobs from the queues and runs them in sandboxes of its engine (its node). This package is the
// service: it serves the queues, claims jobs, starts and ends sandboxes, sends heartbeats, commits the end of each job, and brings
// the engine's containers and the records together (reconcile.go). The rest has packages of its own:
//
//   - execution runs code, commands, installs and file operations in a sandbox that is ready, and uploads artifacts;
//   - placement reserves memory, cores, GPUs and members of the warm pool, and decides when creates are taken from the queue;
//   - node is the engine's side of sandboxes: images, containers, connections to agents;
//   - retry repeats writes while Redis or the object store do not answer.
//
// # What happens when a worker dies
//
// A worker keeps no state that matters: any other worker of the same engine can take over. When its heartbeat has expired, the
// sweep lets another worker claim its jobs with the next attempt number. The attempt number is the fence: a commit of an earlier
// attempt is refused (store.ErrFenced), so the effect of a job is committed once.
//
// Where the worker died decides what the next one finds:
//
//   - before the code ran: it starts the code. Executions in the agent are named after the job, so a start that had reached the
//     agent is found and not repeated.
//   - while the code ran: it attaches to the execution and reads on from the last frame that was staged (package execution).
//   - between upload and commit: it reads the execution from the agent again, uploads the files under the same artifact ids and
//     commits. The agent keeps the execution until the commit is durable (Runner.CleanUp).
//   - after the commit: the record is final and the job cannot be claimed. What the cleanup left, the reconciler and the
//     agent remove later. If Redis loses the commit, the job comes back: the agent still has the execution, or knows how it ended.
//
// A worker that stops in order (Stop) requeues its jobs at once. A create whose engine or node is gone begins anew on another node, as the
// next generation of its sandbox: what the generation before left is not the sandbox's, and is removed. A worker may also be alive without a job that the records give
// it, if the answer to its claim was lost. So each heartbeat lists the jobs that the worker has, and the sweep frees a running job that no
// live worker lists.
//
// # What a worker that lost a job can still write
//
// A worker may have been paused, and not know yet that another one has its job. Each of its writes is refused, or does no harm:
//
//   - refused under an old attempt: the end of the job (store.Finish), events and progress (AppendEvents), artifacts (AddArtifacts),
//     reserved bytes (ReserveStored), checkpoints, moves of the sandbox that name the job (MoveSandbox), LeaveFIFO, requeues;
//   - files of the workspace in the object store: each attempt has keys of its own (package execution), since a later job may change the
//     file while the worker is paused;
//   - outputs and large displays in the object store: the same bytes under the same key in each attempt. Snapshots have the attempt in
//     their name, and count only if a checkpoint names them;
//   - documents (long events, manifests, results): each has a key of its own and counts only if a record names it;
//   - starts and stops in the agent: an execution is named after the job, so a second start attaches. A fenced worker does not stop code;
//   - usage: the record of the sandbox remembers the last sample, so that none is counted twice.
//
// Nothing that a sandbox sends is trusted, and no file of a sandbox is written to the host's file system.
package worker
