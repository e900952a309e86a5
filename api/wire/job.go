package wire

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Job is a piece of work and, once it is finished, its outcome.
type Job struct {
	ID        string `json:"id" doc:"id of the job"`
	Kind      string `json:"kind" doc:"what it does" enum:"create,execute,command,install,file,run,close,interrupt,restart,hibernate,resume"`
	SandboxID string `json:"sandbox_id" doc:"the sandbox it works in"`
	State     string `json:"state" doc:"state of the job; code that raised an exception is completed" enum:"queued,running,completed,failed,timed_out,canceled,lost"`
	Attempt   int    `json:"attempt" doc:"how many workers have started it; 0 while it is queued"`
	Position  int    `json:"position" doc:"position while it is queued, 1 is next: of a create or run in its queue, of other jobs in the FIFO of their sandbox, where 1001 is any place behind the first 1000; 0 otherwise"`

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
	Outcome    *string    `json:"outcome" doc:"whether what it ran was successful: failed if code raised, an exit code is not 0 or a package of a create or an install was not installed (those of a run are in result.installed), and if the job failed, timed out or was lost; null: it has not ended, or was canceled" enum:"ok,failed"`
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

// JobSpec is what a job was asked to do: the accepted body of its request with the defaults filled in. Fields that the kind
// of the job does not have are absent, and so are the values of env and the contents of files.
type JobSpec struct {
	Code            string   `json:"code,omitempty" doc:"the code"`
	Language        string   `json:"language,omitempty" doc:"language of the code"`
	Filename        string   `json:"filename,omitempty" doc:"name of the file in the workspace that the code is from"`
	Context         string   `json:"context,omitempty" doc:"name of the kernel"`
	Commands        []string `json:"commands,omitempty" doc:"the shell commands"`
	Cwd             string   `json:"cwd,omitempty" doc:"working directory of the commands"`
	ContinueOnError bool     `json:"continue_on_error,omitempty" doc:"continue after a command that failed"`
	Background      bool     `json:"background,omitempty" doc:"the commands do not block later jobs of the sandbox"`
	AutoInstall     bool     `json:"auto_install,omitempty" doc:"missing packages are installed first"`
	OnOutputLimit   string   `json:"on_output_limit,omitempty" doc:"what happens when stdout or stderr exceeds limits.max_output_mb" enum:"continue,stop"`
	Packages        []string `json:"packages,omitempty" doc:"packages to install"`
	Manager         string   `json:"manager,omitempty" doc:"installer of the packages" enum:"pip,npm"`
	EnvNames        []string `json:"env_names,omitempty" doc:"names of the environment variables; values are not shown"`

	Name        string            `json:"name,omitempty" doc:"name of the new sandbox"`
	Image       string            `json:"image,omitempty" doc:"image of the new sandbox"`
	Network     string            `json:"network,omitempty" doc:"what the new sandbox can reach" enum:"none,packages,allowlist"`
	AllowHosts  []string          `json:"allow_hosts,omitempty" doc:"rules of the hosts that the new sandbox can reach"`
	Secrets     []string          `json:"secrets,omitempty" doc:"names of the secrets of the new sandbox; values are not kept here"`
	Runtime     string            `json:"runtime,omitempty" doc:"OCI runtime that the new sandbox must have; absent: the default of its node"`
	GPU         *GPU              `json:"gpu,omitempty" doc:"devices of the new sandbox"`
	Resources   *Resources        `json:"resources,omitempty" doc:"what the new sandbox may use"`
	Labels      map[string]string `json:"labels,omitempty" doc:"labels of the new sandbox"`
	TTLSeconds  int               `json:"ttl_seconds,omitempty" doc:"life of the new sandbox"`
	IdleSeconds int               `json:"idle_seconds,omitempty" doc:"life of the new sandbox after the end of its last use"`
	OnIdle      string            `json:"on_idle,omitempty" doc:"what happens when the new sandbox is idle; absent: it is closed" enum:"close,hibernate"`

	Operation string     `json:"operation,omitempty" doc:"what a job of kind file does" enum:"write,tar,many,mkdir,delete,move"`
	Path      string     `json:"path,omitempty" doc:"path in the workspace"`
	To        string     `json:"to,omitempty" doc:"new path of a move"`
	Size      int64      `json:"size,omitempty" doc:"bytes of the upload"`
	Files     []SpecFile `json:"files,omitempty" doc:"files that came with the request, without their content"`

	TimeoutSeconds int    `json:"timeout_seconds,omitempty" doc:"seconds that the job may run"`
	CallbackURL    string `json:"callback_url,omitempty" doc:"address that gets the finished job, without its query"`
	Truncated      bool   `json:"truncated,omitempty" doc:"code, commands or files were cut; GET /v1/jobs/{id}/request has all of it"`
}

// SpecFile is a file that came with a request.
type SpecFile struct {
	Path string `json:"path" doc:"path in the workspace"`
	Size int64  `json:"size" doc:"bytes"`
}

// Event is one server-sent event of a job. Data is the JSON of the type that belongs to Name.
type Event struct {
	ID   string
	Name string // stdout, stderr, display, clear, progress, artifact, state
	Data json.RawMessage
}

// TextData is the data of stdout and stderr events.
type TextData struct {
	Text string `json:"text" doc:"output"`
}

// DisplayData is the data of display events: Data as in Rich, or a link when the value is large.
type DisplayData struct {
	Display    int    `json:"display" doc:"number of the displayed value, from 0: entries of one value share it. A value that was updated in place keeps its number, so of two entries with the same number and type the later one counts"`
	Mime       string `json:"mime" doc:"MIME type"`
	Data       string `json:"data,omitempty" doc:"the value: text as it is, anything else base64"`
	ArtifactID string `json:"artifact_id,omitempty" doc:"the artifact that holds a large value"`
	URL        string `json:"url,omitempty" doc:"link to a large value"`

	DisplayID string          `json:"display_id,omitempty" doc:"the name that the code gave the value; at most 256 bytes"`
	Metadata  json.RawMessage `json:"metadata,omitempty" doc:"an object: how to show the value, such as its size; all entries of a value have the same"`
	Result    bool            `json:"result,omitempty" doc:"the value of the last expression of the code, and not one that the code displayed"`
	More      bool            `json:"more,omitempty" doc:"the next display event has another MIME type of this value; without it the value is complete"`
	Update    bool            `json:"update,omitempty" doc:"the value replaces the one with this number. If this job has not displayed that, it replaces the value with this display_id that an earlier job of the kernel displayed"`
}

// ClearData is the data of clear events: the code cleared all output before, text and values. Results keep the text, and have only the
// values that came after it.
type ClearData struct {
	Wait bool `json:"wait" doc:"true: clear when the next output comes, and not before; updates of values are no such output. false: now"`
}

// ProgressData is the data of progress events. Total 0: not known.
type ProgressData struct {
	Message string  `json:"message" doc:"current step"`
	Done    float64 `json:"done,omitempty" doc:"how much is done"`
	Total   float64 `json:"total,omitempty" doc:"how much there is"`
}

// StateData is the data of state events. The final state is the last event.
type StateData struct {
	State string `json:"state" doc:"state of the job" enum:"queued,running,completed,failed,timed_out,canceled,lost"`
}

// Value is one displayed value: an entry for each of its MIME types, in the order in which they came.
type Value []Rich

// Values groups entries by the number of the displayed value that they belong to, in the order of these numbers. If a value
// was updated in place, only the last entry of each MIME type is kept.
func Values(entries []Rich) []Value {
	byNumber := map[int]Value{}
	var numbers []int
	for _, e := range entries {
		v, seen := byNumber[e.Display]
		if !seen {
			numbers = append(numbers, e.Display)
		}
		if at := slices.IndexFunc(v, func(old Rich) bool { return old.Mime == e.Mime }); at >= 0 {
			v[at] = e
		} else {
			v = append(v, e)
		}
		byNumber[e.Display] = v
	}
	slices.SortFunc(numbers, cmp.Compare[int])
	values := make([]Value, len(numbers))
	for i, n := range numbers {
		values[i] = byNumber[n]
	}
	return values
}

// Number is the number of the value, from 0.
func (v Value) Number() int {
	if len(v) == 0 {
		return 0
	}
	return v[0].Display
}

// First gives the entry of the first of the MIME types that the value has.
func (v Value) First(mimes ...string) (Rich, bool) {
	for _, mime := range mimes {
		if at := slices.IndexFunc(v, func(r Rich) bool { return r.Mime == mime }); at >= 0 {
			return v[at], true
		}
	}
	return Rich{}, false
}

// Text is the data of an entry whose MIME type is text, such as text/html, application/json or image/svg+xml. It is false for
// any other type, and for a value that is behind a link.
func (r Rich) Text() (string, bool) {
	switch {
	case r.Data == "":
		return "", false
	case strings.HasPrefix(r.Mime, "text/"):
		return r.Data, true
	case !IsMarkup(r.Mime):
		return "", false
	}
	raw, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		return r.Data, true // of a farm that sends such types as they are
	}
	return string(raw), true
}

// IsMarkup reports whether a MIME type outside text/* is text all the same: JSON, XML and JavaScript.
func IsMarkup(mime string) bool {
	return IsJSON(mime) || strings.HasSuffix(mime, "+xml") || mime == "application/javascript" || mime == "application/xml"
}

// IsJSON reports whether a MIME type is JSON.
func IsJSON(mime string) bool { return mime == "application/json" || strings.HasSuffix(mime, "+json") }
