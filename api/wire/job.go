package wire

import "time"

// Job is a piece of work and, once it is finished, its outcome.
type Job struct {
	ID        string `json:"id" doc:"id of the job"`
	Kind      string `json:"kind" doc:"what it does" enum:"create,execute,command,install,file,run,close,interrupt,restart,hibernate,resume"`
	SandboxID string `json:"sandbox_id" doc:"the sandbox it works in"`
	State     string `json:"state" doc:"state of the job; code that raised an exception is completed" enum:"queued,running,completed,failed,timed_out,canceled,lost"`
	Attempt   int    `json:"attempt" doc:"how many workers have started it; 0 while it is queued"`
	Position  int    `json:"position" doc:"position while it is queued, 1 is next: of a create or run in its queue, of other jobs in the FIFO of their sandbox; 0 otherwise"`

	// EstimateSeconds is usually null: it is known only if creates of the queue have started recently.
	EstimateSeconds *float64 `json:"estimate_seconds" doc:"estimated seconds until a create or run starts, from the recent pace of its queue; null: not known"`

	Waiting *Waiting `json:"waiting" doc:"what it waits for while it is queued, as of the last reports of the workers; null otherwise, or if that cannot be read"`

	CreatedAt  time.Time  `json:"created_at" doc:"when it was accepted"`
	StartedAt  *time.Time `json:"started_at" doc:"when a worker started it; null: not yet"`
	FinishedAt *time.Time `json:"finished_at" doc:"when it ended; null: not yet"`
	Timings    Timings    `json:"timings" doc:"duration of each phase"`
	Request    *JobSpec   `json:"request" doc:"the request, code up to 64 KiB; null if the farm itself created the job"`
	Result     *Result    `json:"result" doc:"the outcome; null until there is one"`
	Error      *JobError  `json:"error" doc:"why it failed, timed out, was canceled or lost; null otherwise"`
	Outcome    *string    `json:"outcome" doc:"whether what it ran was successful: failed if code raised, an exit code is not 0 or a package was not installed, and if the job failed, timed out or was lost; null: it has not ended, or was canceled" enum:"ok,failed"`
	Links      Links      `json:"links" doc:"paths of the job"`
}

// Final reports whether the job has ended.
func (j *Job) Final() bool {
	switch j.State {
	case "completed", "failed", "timed_out", "canceled", "lost":
		return true
	default:
		return false
	}
}

// Waiting is what a queued job waits for: a code and a sentence.
type Waiting struct {
	Code    string `json:"code" doc:"fifo: other jobs of its sandbox come first; max_running: the quota of its tenant; queue_share: its tenant has as many tasks in the queue as a tenant may; queue: it is in the queue, and no obstacle is known; no_worker: no live worker could take it; worker_failed: those that could accept no jobs; no_gpu_model, no_image, no_runtime: no live worker offers it; drain: the nodes that could take it are drained; too_large: no node is large enough; no_room: no node has its memory and cores free; no_gpu: no node has its GPUs free; busy: all slots of the workers are taken" enum:"fifo,max_running,queue_share,queue,no_worker,no_gpu_model,no_image,no_runtime,drain,worker_failed,too_large,no_room,no_gpu,busy"`
	Message string `json:"message" doc:"what it waits for, in words"`
}

// Timings are the durations of a job's phases, in milliseconds.
type Timings struct {
	QueueMS  float64 `json:"queue_ms" doc:"milliseconds until a worker started it"`
	RunMS    float64 `json:"run_ms" doc:"milliseconds in the sandbox"`
	UploadMS float64 `json:"upload_ms" doc:"milliseconds for its artifacts"`
}

// JobError says why a job did not complete: a code and a sentence.
type JobError struct {
	Code    string `json:"code" doc:"kind of the error" enum:"invalid,unauthorized,not_found,conflict,too_large,exhausted,unavailable,internal"`
	Message string `json:"message" doc:"what happened and what to do"`
}

// Links are the paths of a job.
type Links struct {
	Self   string `json:"self" doc:"path of the job"`
	Events string `json:"events" doc:"path of its events"`
	Cancel string `json:"cancel" doc:"path to DELETE to cancel it"`

	Request string `json:"request" doc:"path of the whole request"`
}
