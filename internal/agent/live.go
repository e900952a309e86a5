package agent

import (
	"encoding/json"
	"net/http"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// LivePrefix begins the paths that callers of the farm reach over the live path: workers pass them on as they are. Nothing below it may do what
// a caller with the scope run must not do to its own sandbox.
const LivePrefix = "/v1/live/"

// ProcessesPath is where an agent has the processes that run beside jobs.
const ProcessesPath = LivePrefix + "processes"

// KernelsPath is where an agent has the kernels of contexts, as notebooks use them.
const KernelsPath = LivePrefix + "kernels"

// NotebookQuestion is what a notebook asks of a kernel.
type NotebookQuestion struct {
	Kind    string          `json:"kind"`
	Content json.RawMessage `json:"content"`
	Message string          `json:"message,omitempty"` // id of what asks
}

// MaxAnswerBytes bounds the answer to a NotebookQuestion, as JSON.
const MaxAnswerBytes = 1 << 20

// NotebookInput is the answer of a notebook to a question for input.
type NotebookInput struct {
	Number uint64 `json:"number"`
	Value  string `json:"value"`
}

// RunningPath is where an agent lists all processes of its sandbox, whoever started them.
const RunningPath = LivePrefix + "running"

// UsePath is where an agent says what its sandbox uses.
const UsePath = LivePrefix + "use"

// ContextsPath is where an agent has the contexts in which code runs.
const ContextsPath = LivePrefix + "contexts"

// PortsPath is where an agent has the ports of the sandbox's loopback.
const PortsPath = LivePrefix + "ports"

// StreamType is the media type of the request and the answer of a connection to a port, whose frames package transport has.
const StreamType = "application/x-sandfarm-stream"

// FSPath is where an agent has the files of the whole sandbox, as its user sees them.
const FSPath = LivePrefix + "fs"

// FilesFD is the descriptor by which the process that serves files reaches the agent.
const FilesFD = 3

const (
	// MaxContexts bounds the contexts of a sandbox, each language of one counted. One more ends the context that was idle for longest.
	MaxContexts = 32
	// MaxContextBytes bounds the name of a context.
	MaxContextBytes = 128
	// MaxKindBytes is where the kind of a message of a kernel is cut, before an ellipsis.
	MaxKindBytes = 64
	// MaxParentBytes is where the id of the message that caused it is cut.
	MaxParentBytes = 256
	// MaxPorts is how many ports are listed.
	MaxPorts = 1000
	// MaxPortStreams is how many connections to ports of a sandbox may be open at once.
	MaxPortStreams = 256

	// WindowBytes is how much output of a process is kept for readers that come, or come again. Sandboxes of little memory keep less.
	WindowBytes = 1 << 20
	// OutputBytes is about how much output one answer has. Its reader asks for more then, so this much is on its way to a slow one.
	OutputBytes = 512 << 10
	// InputBytes is how many bytes one call of a numbered writer has at most.
	InputBytes = 64 << 10
)

// StatusOf is the HTTP status with which agents and workers answer with an error of a code.
func StatusOf(code farm.Code) int {
	status, ok := map[farm.Code]int{
		farm.CodeInvalid: http.StatusBadRequest, farm.CodeNotFound: http.StatusNotFound, farm.CodeConflict: http.StatusConflict,
		farm.CodeTooLarge: http.StatusRequestEntityTooLarge, farm.CodeExhausted: http.StatusTooManyRequests,
		farm.CodeUnavailable: http.StatusServiceUnavailable,
	}[code]
	if !ok {
		return http.StatusInternalServerError
	}
	return status
}

// PieceBytes bounds one answer with content of a file, for the same reason: its reader asks for the next piece. It begins with a line of JSON, a
// FilePiece.
const PieceBytes = 256 << 10

// FilePiece describes a piece of a file.
type FilePiece struct {
	Entry  farm.FSEntry `json:"entry"`
	Inode  uint64       `json:"inode"` // the same as long as the file is not replaced
	Length int64        `json:"length"`
}

// PackPiece describes a piece of a tar, as FilePiece does one of a file. The tar ends when Next is empty; the reader adds its end.
type PackPiece struct {
	Next    string `json:"next"` // what the next request is told; opaque
	Length  int64  `json:"length"`
	LeftOut int    `json:"left_out,omitempty"` // files and directories that could not be packed, and are not in an earlier piece's number
}

// FileKind says what happened to a file.
type FileKind string

// What happens to files.
const (
	FileCreated FileKind = "created" // the name names something new, which may have replaced a file
	FileChanged FileKind = "changed" // its content, mode, owner or times
	FileRemoved FileKind = "removed" // or it was renamed to a place that is not watched
	FileRenamed FileKind = "renamed" // From: its name before; what had the new name is replaced
	FileDropped FileKind = "dropped" // something happened that no event tells
)

// FileEvent is one change in a tree that is watched. Numbers count from 1 without gaps.
type FileEvent struct {
	Seq    uint64   `json:"seq"`
	Kind   FileKind `json:"kind"`
	Path   string   `json:"path,omitempty"` // absolute
	From   string   `json:"from,omitempty"`
	Type   string   `json:"type,omitempty"` // dir, or file for anything else
	Reason string   `json:"reason,omitempty"`

	// Metadata: of a changed file, the mode, owner or times, and not the content.
	Metadata bool `json:"metadata,omitempty"`
}

// FileEvents is an answer with changes. Lost: some before the first are not kept any more.
type FileEvents struct {
	Events []FileEvent `json:"events"`
	Lost   bool        `json:"lost,omitempty"`
}

// WatchStarted says how much is watched.
type WatchStarted struct {
	Directories int `json:"directories"`
}
