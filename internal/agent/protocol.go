// Package agent holds the protocol between a worker and the agent that is PID 1 in every sandbox: HTTP over a yamux
// session over one stream. The types here are the messages; package server is the agent's side, package client the worker's.
// Everything that the agent sends is untrusted input: the client bounds and checks it.
package agent

import (
	"encoding/json"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Paths and addresses inside a sandbox.
const (
	MountDir   = "/sandfarm"         // the agent's read-only volume
	BinaryPath = MountDir + "/agent" // the agent itself
	RunDir     = "/run/sandfarm"     // the agent's own tmpfs
	SocketPath = "@sandfarm-agent"   // where it listens, a name that user code cannot remove or take over; only DialUID may connect
	HomeDir    = "/home/sandbox"     // HOME of user code
	TmpDir     = "/tmp"
	UVPath     = MountDir + "/uv" // the installer, if the worker could provide it
	EgressAddr = "127.0.0.1:3141" // farm.EgressPort, where the agent listens with `init --egress`: it forwards each connection to a worker
	PipPath    = "/pypi/simple/"  // the Python index behind EgressAddr
	NpmPath    = "/npm/"          // the npm registry behind EgressAddr
	DialUID    = 65533            // uid (and gid) of `agent dial`, so that user code cannot dial
	DialUser   = "65533:65533"    // the same, as engines write it
)

// DialCommand connects its input and output to the agent.
func DialCommand() []string { return []string{BinaryPath, "dial"} }

// Installing begins the line of standard error in which the agent names what an installer is about to install. It is the progress of the job.
const Installing = "installing "

// How many connections the agent carries to the worker at once. More wait in the sandbox; a worker ends the session of an agent that has more.
const (
	MaxIndexStreams = 32  // in a sandbox that reaches the package indexes only
	MaxProxyStreams = 128 // in one whose worker is a proxy
)

// Spec is one execution. It is keyed by its job's id: starting the same id again changes nothing, for the life of the sandbox.
type Spec struct {
	Kind            farm.JobKind      `json:"kind"` // farm.KindExecute, farm.KindCommand or farm.KindInstall
	Code            string            `json:"code,omitempty"`
	Language        string            `json:"language,omitempty"`
	Filename        string            `json:"filename,omitempty"` // of the file in the workspace that the code is from; Python only
	Context         string            `json:"context,omitempty"`
	Commands        []string          `json:"commands,omitempty"`
	Cwd             string            `json:"cwd,omitempty"` // relative to the workspace or absolute; empty: the workspace
	ContinueOnError bool              `json:"continue_on_error,omitempty"`
	Background      bool              `json:"background,omitempty"` // excluded from the changed files reported for other executions
	Env             map[string]string `json:"env,omitempty"`
	Data            bool              `json:"data,omitempty"` // figures, tables, lists and dicts are also shown as data
	Timeout         time.Duration     `json:"timeout"`        // 0: none. The agent enforces it, so it holds even without a worker
	Grace           time.Duration     `json:"grace"`          // after an interrupt, before a kill; 0: 2 s
	MaxFiles        int               `json:"max_files"`      // maximum number of changed files reported
	MaxFileBytes    int64             `json:"max_file_bytes"` // larger ones are counted as skipped
	Install         *Install          `json:"install,omitempty"`
	Cell            *farm.Cell        `json:"cell,omitempty"` // of a notebook; nil: the code is no cell

	// MaxOutput bounds the bytes of each of stdout and stderr that leave the sandbox, all commands together; 0: unlimited. What is
	// beyond is dropped from the middle, which FrameDropped tells, and the code continues. StopAtMaxOutput stops it instead.
	MaxOutput       int64 `json:"max_output,omitempty"`
	StopAtMaxOutput bool  `json:"stop_at_max_output,omitempty"`
}

// Install is the request of an execution of farm.KindInstall: install Packages, or find out what Code or Commands
// need. The installer's output becomes frames, the results are in Outcome.Install.
type Install struct {
	Manager  string   `json:"manager"`            // farm.ManagerPip or farm.ManagerNpm
	Packages []string `json:"packages,omitempty"` // requirements, checked by the API and checked again

	// Auto installs what Code imports and neither the image nor the workspace has, and what the workspace's
	// requirements.txt lists. With Commands it is what the Python programs that they start import, and the requirements.txt
	// beside those.
	Auto bool   `json:"auto,omitempty"`
	Code string `json:"code,omitempty"`

	Commands []string `json:"commands,omitempty"`
	Cwd      string   `json:"cwd,omitempty"` // of the commands, as in Spec

	Only []string `json:"only,omitempty"` // normalised names that Auto may install; empty: every one
	Deny []string `json:"deny,omitempty"` // normalised names that Auto never installs
}

// FramesType is the media type of a stream of frames.
const FramesType = "application/octet-stream"

// FrameType says what a frame carries.
type FrameType uint8

// The frames of an execution.
const (
	FrameStdout       FrameType = 1 // bytes
	FrameStderr       FrameType = 2 // bytes
	FrameDisplay      FrameType = 3 // JSON Display
	FrameCommandStart FrameType = 4 // JSON CommandMark: output that follows is this command's
	FrameCommandEnd   FrameType = 5 // JSON CommandMark
	FrameFinal        FrameType = 6 // JSON Outcome; always the last
	FrameDropped      FrameType = 7 // JSON Dropped: output of the current command that was left out, before its end
	FrameMessage      FrameType = 8 // JSON Message; not of an execution
)

// MaxFrameBytes bounds the payload of a frame. Output frames are at most 64 KiB.
const MaxFrameBytes = 64 << 20

// A worker acknowledges an execution's frames when it has read AckBytes of them, so an agent whose log holds as much may wait for that.
const (
	LogBytes = 16 << 20 // unacknowledged bytes that an execution may hold; one frame may go beyond
	AckBytes = 10 << 20
)

// MaxDisplayID bounds the bytes of the name of a displayed value. IPython's names have 32. A value with a longer one has no name.
const MaxDisplayID = 256

// Frame is one piece of an execution's log. Seq counts from 1 without gaps.
type Frame struct {
	Seq     uint64
	Type    FrameType
	Payload []byte
}

// Display is one displayed value: a MIME bundle. Values of text types (text/*, JSON, XML, image/svg+xml) are text, others are
// base64, with or without line breaks.
type Display struct {
	// Number counts the displayed values of the execution from 1. A value that is updated in place keeps its number.
	// 0: the agent is older than this field.
	Number int               `json:"number,omitempty"`
	Data   map[string]string `json:"data"`
	// Metadata is a JSON object for those who render the value, such as its size; empty: none.
	Metadata json.RawMessage `json:"metadata,omitempty"`
	// ID is the code's name of the value, at most MaxDisplayID bytes; empty: none. Update: the value replaces the one with that name.
	ID     string `json:"display_id,omitempty"`
	Update bool   `json:"update,omitempty"`
	// Result says that this is the value of the last expression of the code, and not one that the code displayed.
	Result bool `json:"result,omitempty"`
	// Clear says that all output so far, text and values, is to be cleared, and that there is no value; empty: there is one.
	Clear Clear `json:"clear,omitempty"`
}

// Clear says when to clear the output so far.
type Clear string

// The times to clear.
const (
	ClearNow  Clear = "now"
	ClearWait Clear = "wait" // when there is output or a value again
)

// Message is what a kernel says to notebooks beside the output of executions. Kind and Content are those of Jupyter's protocol; buffers of
// comms are base64 in the content.
type Message struct {
	Seq     uint64          `json:"seq"` // from 1, without gaps
	Kind    string          `json:"kind"`
	Parent  string          `json:"parent,omitempty"` // id of the notebook's message that caused it; empty: none
	Number  uint64          `json:"number,omitempty"` // of a question for input: for its answer
	Content json.RawMessage `json:"content"`

	// Execution sent the message after its frame After; empty: none did, since the kernel ran none.
	Execution string `json:"execution,omitempty"`
	After     uint64 `json:"after,omitempty"`
}

// CommandMark begins or ends one command of a list.
type CommandMark struct {
	Index      int     `json:"index"`
	ExitCode   int     `json:"exit_code"`
	DurationMS float64 `json:"duration_ms"`
}

// Dropped says how many bytes of the output of a command, or of code, were dropped at this place: more than Spec.MaxOutput allows, or
// written while the execution was stopped and no worker read.
type Dropped struct {
	Stdout int64 `json:"stdout,omitempty"`
	Stderr int64 `json:"stderr,omitempty"`
}

// Outcome is how an execution ended.
type Outcome struct {
	ExitCode       int             `json:"exit_code"`
	Error          *farm.CodeError `json:"error,omitempty"`
	ExecutionCount int             `json:"execution_count"`
	Restarted      bool            `json:"restarted,omitempty"`     // the kernel ended and a new one was started: variables are lost
	FreshProcess   bool            `json:"fresh_process,omitempty"` // no kernel in the image: the code ran in a process of its own
	TimedOut       bool            `json:"timed_out,omitempty"`
	Canceled       bool            `json:"canceled,omitempty"`
	OutOfMemory    bool            `json:"out_of_memory,omitempty"`
	Files          []ChangedFile   `json:"files,omitempty"`    // created or changed in the workspace, regular files only
	Skipped        int             `json:"skipped,omitempty"`  // changed files over the caps
	LeftOut        []LeftOut       `json:"left_out,omitempty"` // changed files of folders that are left out, those with the most first
	RunMS          float64         `json:"run_ms"`

	Install []farm.PackageOutcome `json:"install,omitempty"` // of an install, in the order of the request
	Notes   []string              `json:"notes,omitempty"`   // of an install: notes for the caller, a sentence each

	StoppedAtMaxOutput bool `json:"stopped_at_max_output,omitempty"` // see Spec.StopAtMaxOutput

	// OutputGone says that the agent has only this much left of the execution: the frames before the final one are dropped, and with
	// them Files, Install and Notes; Error is cut. Skipped counts Files, too.
	OutputGone bool `json:"output_gone,omitempty"`
}

// ChangedFile is a regular file of the workspace that an execution created or changed. Path is relative to the workspace.
type ChangedFile struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// MaxPathsBytes bounds the paths of all changed files of an Outcome together, as JSON has them (farm.Quoted): a worker has each of them in memory
// several times.
const MaxPathsBytes = 2 << 20

// LeftOut counts changed files that are in neither Files nor Skipped of an Outcome, since they are in a folder of the workspace that holds what is
// installed, derived or cached.
type LeftOut struct {
	Folder string `json:"folder,omitempty"` // relative to the workspace; empty: other such folders together, the last entry
	Files  int    `json:"files"`
}

// MaxLeftOut is how many folders LeftOut names.
const MaxLeftOut = 10

// StopReason says why an execution is stopped.
type StopReason string

// The reasons: an interrupt leaves the execution completed (with a KeyboardInterrupt), a cancel marks it canceled.
// Either way it is interrupted first and killed after its grace.
const (
	StopInterrupt StopReason = "interrupt"
	StopCancel    StopReason = "cancel"
)

// ListQuery says what a listing contains.
type ListQuery struct {
	Recursive bool
	Limit     int    // entries at most; 0: the agent's page size
	After     string // only entries after this path, in the order of a walk; empty: all
}

// PageBytes bounds the paths of a Listing together, as JSON has them (farm.Quoted): a worker has each of them in memory several times.
const PageBytes = 8 << 20

// Listing is a page of a listing, in the order of a walk: by name in each directory, a directory before its contents.
type Listing struct {
	Entries []farm.FileEntry `json:"entries"`
	More    bool             `json:"more"`     // there are more entries after the last one
	After   string           `json:"after"`    // After of the query
	TooLong int              `json:"too_long"` // entries that were left out, with all below them, because their path is too long or not UTF-8
}

// Execution describes an execution that the agent knows.
type Execution struct {
	ID       string    `json:"id"`
	Done     bool      `json:"done"`
	Started  time.Time `json:"started,omitzero"` // zero: only its outcome is left
	LastSeq  uint64    `json:"last_seq"`
	FirstSeq uint64    `json:"first_seq"` // the first frame still kept
}

// Info describes the agent and the sandbox.
type Info struct {
	Version    string   `json:"version"`
	Languages  []string `json:"languages"`   // what can be executed here: kernels and fresh-process fallbacks
	Kernels    []Kernel `json:"kernels"`     // running ones
	UsedBytes  int64    `json:"used_bytes"`  // memory of the sandbox's cgroup, 0 when unknown
	LimitBytes int64    `json:"limit_bytes"` // its limit, 0 when unknown
	OOMKills   int64    `json:"oom_kills"`
}

// Kernel describes a running kernel.
type Kernel struct {
	Context  string `json:"context"`
	Language string `json:"language"`
	PID      int    `json:"pid"`
	Busy     bool   `json:"busy"`
}
