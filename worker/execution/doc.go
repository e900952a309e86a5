// Package execution runs claimed jobs in sandboxes that are ready: code and commands, installs, file operations, and requests to
// kernels. A Runner follows each execution from its first frame to its outcome, publishes output as events, and uploads artifacts.
//
// # From frames to the result
//
// The agent logs an execution as numbered frames and keeps them until they are acknowledged. follow.go reads them and dials again
// when the stream breaks; collect.go turns them into events and the result; outputs.go uploads a long stream in parts of its artifact
// while it continues, and displays.go large values when they arrive; staging.go acknowledges a long log when a snapshot of the collector is in
// the object store; artifacts.go uploads changed files.
//
// A worker that takes over begins with the snapshot, reads the rest from the agent, and gets the same result. Events carry the
// numbers of their frames, parts of an artifact are always the same bytes, and artifact ids follow from the job and the path, so
// nothing is added twice: a worker may die or be held up at any step (takeover_test.go). If the worker died
// between upload and commit, the next one uploads the same objects again under the same ids and commits; the agent forgets the
// execution only when the commit is durable (cleanup.go), and then still knows how it ended: the code never runs twice. A job that comes
// back after that gets the outcome, with a note that the output is gone (noteGone).
//
// # Where output is limited
//
//   - the agent sends at most limits.MaxOutputMB of each stream of a job and drops the middle of what is longer; stream.go counts that,
//     and cuts what an agent sends beyond it;
//   - stream.go keeps limits.MaxStreamInline bytes of each of stdout and stderr in the record: head and tail around a line that
//     names the artifact with the whole. The streams of all commands have limits.MaxResultInline together (outputs.go);
//   - collect.go stops sending a stream as events after limits.MaxStreamEvents bytes, bounds rich results and their events (maxRich…)
//     and moves those over limits.MaxInlineRich to artifacts, and removes from the result the values that the code has cleared;
//   - result.go and packages.go cut errors, tracebacks, notes and what an install reports;
//   - artifacts.go skips files over limits.MaxArtifactBytes and those after limits.MaxArtifacts, as does the agent;
//   - storage.go reserves the bytes of what is uploaded; what is beyond the tenant's quota max_stored_mb is skipped, with a note;
//   - kept.go charges what the record will have to the staging memory while the job runs; without room streams are cut shorter, and values
//     become artifacts;
//   - spool.go keeps what waits for its upload in the staging memory, then in a file; what fits into neither is cut, with a note. The result
//     is charged to the memory budget until it is stored (runner.go);
//   - the agent holds the code back when its frame log is full (backpressure), so memory is bounded on both ends (readAhead here,
//     ackBytes until a snapshot is stored).
//
// # While Redis or the object store is away
//
// Redis is waited for until the worker stops (package retry): events, checkpoints and records are written as they would have been. Frames
// are not read meanwhile, so the agent's log holds back code that prints more than it takes, and memory stays bounded for hours. Once the
// outcome is known, the agent is not asked again. The wait does not count as time of the execution (worker/node/deadline.go).
//
// The object store is waited for until it has been away for Config.UploadRetry. The job stays in its sandbox's FIFO for that time: the
// next job could change the files that wait for their upload. After that, each upload gets one try, and the job fails with its output.
//
// Everything that an agent sends is untrusted: it is bounded, checked, and frames that no agent sends end the job with ErrProtocol.
package execution
