// Package farm is the domain of Sandfarm: sandboxes, jobs, results, artifacts, their states and limits, ids and error
// codes. It owns the rules (which state may follow which, what a valid name is, what every limit is) and knows nothing
// of Redis, Docker, S3 or HTTP: it imports only the standard library.
package farm

import (
	"time"
)

// JobKind is what a job does.
type JobKind string

// The kinds of the contract.
const (
	KindCreate    JobKind = "create"
	KindExecute   JobKind = "execute"
	KindCommand   JobKind = "command"
	KindInstall   JobKind = "install"
	KindFile      JobKind = "file"
	KindRun       JobKind = "run"
	KindClose     JobKind = "close"
	KindInterrupt JobKind = "interrupt"
	KindRestart   JobKind = "restart"
	KindHibernate JobKind = "hibernate"
	KindResume    JobKind = "resume"
	KindPackages  JobKind = "packages" // looks up what is installed; always hidden
)

// JobKinds lists the kinds that callers see, without the hidden one.
func JobKinds() []JobKind {
	return []JobKind{
		KindCreate, KindExecute, KindCommand, KindInstall, KindFile, KindRun, KindClose, KindInterrupt, KindRestart, KindHibernate, KindResume,
	}
}

// Ref names a record. Ids are unique, but every key also contains the tenant, so another tenant's id finds nothing.
type Ref struct {
	Tenant string `json:"t"`
	ID     string `json:"id"`
}

// Job is the record of a job. It is the source of truth; tasks in queues only wake workers.
type Job struct {
	ID        string   `json:"id"`
	Tenant    string   `json:"tenant"`
	Kind      JobKind  `json:"kind"`
	SandboxID string   `json:"sandbox_id,omitempty"`
	State     JobState `json:"state"`

	Attempt          int    `json:"attempt"`          // the fence: how often a worker has claimed it, 0 at first
	GracefulRequeues int    `json:"spared,omitempty"` // attempts that do not count as crashes: the job was requeued though no worker had died
	Worker           string `json:"worker,omitempty"` // who runs it now

	CreatedAt  time.Time `json:"created_at"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
	Timings    Timings   `json:"timings"`

	Result  *Result    `json:"result,omitempty"`
	Error   *JobError  `json:"error,omitempty"`
	Outcome JobOutcome `json:"outcome,omitempty"` // of Result and State, from its end; also empty if an older program ended it

	// ArtifactsGone: some of the artifacts that Result names were deleted or have expired.
	ArtifactsGone bool `json:"artifacts_gone,omitempty"`

	// Redacted is the request as callers see it: env without values, files without content, long code cut (Truncated). Nil: the
	// farm made the job, or it is hidden.
	Redacted  *Request `json:"shown,omitempty"`
	Truncated bool     `json:"shown_cut,omitempty"`

	TimeoutSeconds int    `json:"timeout_seconds,omitempty"`
	CallbackURL    string `json:"callback_url,omitempty"`
	Trace          string `json:"trace,omitempty"`  // W3C traceparent of the request; empty: it is not traced
	Queue          string `json:"queue"`            // of its task; empty: that of its sandbox's node
	Inline         bool   `json:"inline,omitempty"` // does not wait in its sandbox's FIFO (reads, interrupt, restart, close)
	Hidden         bool   `json:"hidden,omitempty"` // not listed, and removed soon after its end (reads of files)
}

// Ref names the job's record.
func (j *Job) Ref() Ref { return Ref{Tenant: j.Tenant, ID: j.ID} }

// Cell is the cell of a notebook that the job runs; nil: it runs none.
func (j *Job) Cell() *Cell {
	if j.Redacted == nil || j.Redacted.Execute == nil {
		return nil
	}
	return j.Redacted.Execute.Cell
}

// Timings are how long each phase of a job took, in milliseconds.
type Timings struct {
	QueueMS  float64 `json:"queue_ms"`  // from acceptance to the claim
	RunMS    float64 `json:"run_ms"`    // in the sandbox
	UploadMS float64 `json:"upload_ms"` // artifacts to the object store
}

// JobError is why a job failed or was lost: a code, and a sentence that says what to do.
type JobError struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// Request is the request of a job. The field of the job's kind is set, and for create and run also those that say so.
type Request struct {
	Sandbox *SandboxSpec    `json:"sandbox,omitempty"` // create, run
	Execute *ExecuteRequest `json:"execute,omitempty"` // execute, run
	Command *CommandRequest `json:"command,omitempty"`
	File    *FileRequest    `json:"file,omitempty"`
	Install *InstallRequest `json:"install,omitempty"` // install; create and run: before anything else
	Files   []InputFile     `json:"files,omitempty"`   // run
	Close   *CloseRequest   `json:"close,omitempty"`
	Context string          `json:"context,omitempty"` // interrupt, restart: one context; empty: all
}

// ExecuteRequest runs code in the kernel of a context.
type ExecuteRequest struct {
	Code        string            `json:"code"`
	Language    string            `json:"language"`
	Filename    string            `json:"filename,omitempty"` // of the file in the workspace that the code is from, as CleanFilePath returns it; Python only
	Context     string            `json:"context"`
	Env         map[string]string `json:"env,omitempty"` // of this execution only
	AutoInstall bool              `json:"auto_install,omitempty"`
	Data        bool              `json:"data,omitempty"` // figures, tables, lists and dicts are also shown as data

	StopAtOutputLimit bool `json:"stop_at_output_limit,omitempty"` // at Limits.MaxOutputMB; otherwise the code runs on

	Cell *Cell `json:"cell,omitempty"` // of a notebook; nil: the code is no cell
}

// Cell says which message of a notebook asked for code. Whatever belongs to the code is sent with the ids of that message.
type Cell struct {
	Session string `json:"session,omitempty"` // of the notebook's client, which chose it
	Message string `json:"message"`           // id of the message
	Input   bool   `json:"input,omitempty"`   // the client answers when the code asks for a line of input

	Stops     bool `json:"stops,omitempty"`      // if the code fails, cells of the session that wait behind it are canceled
	Silent    bool `json:"silent,omitempty"`     // the code is not counted, and its last value is not shown
	NoHistory bool `json:"no_history,omitempty"` // the code is not counted
}

// CommandRequest runs shell commands one after the other.
type CommandRequest struct {
	Commands        []string          `json:"commands"`
	Cwd             string            `json:"cwd,omitempty"` // relative to the workspace, or absolute
	Env             map[string]string `json:"env,omitempty"`
	ContinueOnError bool              `json:"continue_on_error,omitempty"`
	Background      bool              `json:"background,omitempty"`
	AutoInstall     bool              `json:"auto_install,omitempty"` // installs what the Python programs that they start import

	StopAtOutputLimit bool `json:"stop_at_output_limit,omitempty"` // as for an ExecuteRequest
}

// FileOp is what a file job does.
type FileOp string

// The operations on files.
const (
	FileWrite  FileOp = "write" // Staged holds the bytes
	FileTar    FileOp = "tar"   // Staged holds an uncompressed tar, unpacked under Path
	FileMany   FileOp = "many"  // Parts hold the files
	FileMkdir  FileOp = "mkdir"
	FileDelete FileOp = "delete"
	FileMove   FileOp = "move" // Path to To
	FileList   FileOp = "list"
	FileStat   FileOp = "stat"
	FileRead   FileOp = "read" // the bytes are stored under Staged, or inline if they are few
)

// Reads reports whether the operation changes nothing: then it does not wait in the sandbox's FIFO.
func (op FileOp) Reads() bool { return op == FileList || op == FileStat || op == FileRead }

// FileRequest is an operation on the workspace. Paths are relative to it and clean (see CleanPath).
type FileRequest struct {
	Op        FileOp      `json:"op"`
	Path      string      `json:"path"`
	To        string      `json:"to,omitempty"`
	Recursive bool        `json:"recursive,omitempty"`
	Limit     int         `json:"limit,omitempty"`  // list: entries at most; 0: MaxListedFiles
	After     string      `json:"after,omitempty"`  // list: the last path of the page before
	Staged    string      `json:"staged,omitempty"` // key of the staged object
	Size      int64       `json:"size,omitempty"`   // bytes staged
	Parts     []InputFile `json:"parts,omitempty"`
	Link      bool        `json:"link,omitempty"`   // read: the whole file is staged, since the caller gets a link to it
	Offset    int64       `json:"offset,omitempty"` // read: first byte; negative: that many from the end
	Length    int64       `json:"length,omitempty"` // read: how many bytes; 0: to the end
}

// InputFile is a file of a request. Its bytes are inline or staged.
type InputFile struct {
	Path    string `json:"path"`
	Content []byte `json:"content,omitempty"`
	Staged  string `json:"staged,omitempty"`
	Size    int64  `json:"size"`
}

// CloseRequest ends a sandbox.
type CloseRequest struct {
	Expired bool   `json:"expired,omitempty"` // its deadline has passed
	Reason  string `json:"reason,omitempty"`
}

// EventName is the kind of an event of a job.
type EventName string

// The events of the contract.
const (
	EventStdout   EventName = "stdout"
	EventStderr   EventName = "stderr"
	EventDisplay  EventName = "display"
	EventClear    EventName = "clear"
	EventProgress EventName = "progress"
	EventArtifact EventName = "artifact"
	EventState    EventName = "state"
)

// Event is one event of a job. The field that its name says is set.
type Event struct {
	ID       string      `json:"-"` // set by the store: "<seq>-<n>", increasing
	Name     EventName   `json:"name"`
	Text     string      `json:"text,omitempty"` // stdout, stderr
	Display  *RichResult `json:"display,omitempty"`
	Artifact *Artifact   `json:"artifact,omitempty"`
	Progress *Progress   `json:"progress,omitempty"`
	Wait     bool        `json:"wait,omitempty"` // clear: only when there is more output
	State    JobState    `json:"state,omitempty"`
}

// Progress is the progress of a long step. Total 0 means unknown.
type Progress struct {
	Message string  `json:"message"`
	Done    float64 `json:"done,omitempty"`
	Total   float64 `json:"total,omitempty"`
}

// CodeContext is where code of a sandbox runs, with the variables of earlier code: a name and a language. Languages without a kernel keep nothing
// but the directory.
type CodeContext struct {
	Name     string `json:"name"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"` // where its code starts; in a sandbox it is absolute
}
