package wire

import (
	"encoding/binary"
	"time"
)

// ProcessRequest is the body of POST /v1/sandboxes/{id}/processes: a command for the shell, or a program with its arguments.
type ProcessRequest struct {
	Command        *string           `json:"command,omitempty" doc:"a command for the shell of the image"`
	Argv           []string          `json:"argv,omitempty" doc:"a program and its arguments, instead of command"`
	Cwd            string            `json:"cwd,omitempty" doc:"working directory, relative to the workspace"`
	Env            map[string]string `json:"env,omitempty" doc:"environment of this process only; a name has at most 128 bytes"`
	Name           string            `json:"name,omitempty" doc:"name of the process; need not be unique"`
	PTY            *TerminalSize     `json:"pty,omitempty" doc:"run it on a terminal of this size; its output is all stdout then"`
	Stdin          bool              `json:"stdin,omitempty" doc:"give it an input that POST …/stdin writes to; a terminal always has one. Otherwise its input is empty"`
	TimeoutSeconds *int              `json:"timeout_seconds,omitempty" doc:"seconds that it may run; absent: as long as the sandbox"`
	HangupSeconds  *int              `json:"hangup_seconds,omitempty" doc:"seconds without a reader of its output, also at the beginning, after which it gets SIGHUP, as when a terminal is closed; absent: never"`
	Restart        string            `json:"restart,omitempty" enum:"never,on-failure" doc:"on-failure: start it again after an exit code other than 0, after a pause that doubles from 0.1 to 30 seconds, until it was ended by DELETE or its timeout, or failed soon after 10 of them in a row; default never"`
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Cols int `json:"cols" doc:"columns, 1 to 1000" required:"true"`
	Rows int `json:"rows" doc:"rows, 1 to 1000" required:"true"`
}

// SignalRequest is the body of POST …/processes/{process}/signal.
type SignalRequest struct {
	Signal string `json:"signal" doc:"such as SIGINT, SIGTERM, SIGKILL, SIGHUP, SIGUSR1, SIGSTOP, SIGCONT" required:"true"`
}

// Process is a process that a caller started in a sandbox beside its jobs.
type Process struct {
	ID          string        `json:"id" doc:"id of the process; empty where a pid was given that no caller started"`
	PID         int           `json:"pid" doc:"its number in the sandbox; 0: it waits until it is started again"`
	Name        string        `json:"name" doc:"name that the caller gave"`
	State       string        `json:"state" doc:"whether it runs" enum:"running,exited"`
	Command     string        `json:"command,omitempty" doc:"the command, if the request had one"`
	Argv        []string      `json:"argv,omitempty" doc:"the program and its arguments, if the request had them"`
	PTY         *TerminalSize `json:"pty" doc:"size of its terminal; null: it has none"`
	Stdin       bool          `json:"stdin" doc:"it was started with an input"`
	Restart     string        `json:"restart" doc:"when it is started again" enum:"never,on-failure"`
	Restarts    int           `json:"restarts" doc:"how often it was started again"`
	StartedAt   time.Time     `json:"started_at" doc:"when it was started, the first time"`
	EndedAt     *time.Time    `json:"ended_at" doc:"when it ended; null: it runs"`
	ExitCode    *int          `json:"exit_code" doc:"its exit code, 128 and the number of the signal that ended it; null: it runs"`
	TimedOut    bool          `json:"timed_out" doc:"it was ended after timeout_seconds"`
	Stopped     bool          `json:"stopped" doc:"it was ended by DELETE"`
	OutOfMemory bool          `json:"out_of_memory" doc:"it was ended since a limit of the sandbox, such as its memory, was reached"`
}

// RunningProcess is a process of a sandbox, whoever started it.
type RunningProcess struct {
	PID         int       `json:"pid" doc:"its number in the sandbox"`
	Parent      int       `json:"parent" doc:"number of the process that started it, or 1 if that has ended"`
	Owner       string    `json:"owner" doc:"id of the process or job that it belongs to, or kernel; empty: unknown. Taken from its environment, which code can change"`
	Command     string    `json:"command" doc:"its arguments, up to 256 bytes"`
	CPUSeconds  float64   `json:"cpu_seconds" doc:"CPU time that it has used"`
	MemoryBytes int64     `json:"memory_bytes" doc:"its memory (resident), with what it shares with others"`
	StartedAt   time.Time `json:"started_at" doc:"when it was started, to a hundredth of a second"`
}

// Processes are the processes of a sandbox.
type Processes struct {
	Running []RunningProcess `json:"running,omitempty" doc:"with all=true: the processes that run in the sandbox, those of jobs and kernels too, by pid; the first 1000"`
	Items   []Process        `json:"items" doc:"the processes, the oldest first; of those that have ended, the newest 64"`
}

// Written says how much of a body a process's input took.
type Written struct {
	Written int64 `json:"written" doc:"bytes"`
}

// OutputData is the data of the stdout and stderr events of a process: text if the bytes are UTF-8, otherwise base64.
type OutputData struct {
	Text   *string `json:"text,omitempty" doc:"the bytes as text"`
	Base64 []byte  `json:"base64,omitempty" doc:"the bytes in base64, if they are not UTF-8"`
}

// ExitData is the data of the exit event of a process, which is the last one.
type ExitData struct {
	ExitCode    int  `json:"exit_code" doc:"as in Process"`
	TimedOut    bool `json:"timed_out" doc:"as in Process"`
	Stopped     bool `json:"stopped" doc:"as in Process"`
	OutOfMemory bool `json:"out_of_memory" doc:"as in Process"`
}

// MaxAttachBytes is how much input one message of a caller may carry.
const MaxAttachBytes = 64 << 10

// AttachKind is the first byte of each message of GET …/processes/{process}/attach. Numbers in messages are big-endian.
type AttachKind byte

// What callers send.
const (
	AttachStdin  AttachKind = 1 // bytes for the input
	AttachEnd    AttachKind = 2 // the end of the input
	AttachResize AttachKind = 3 // columns and rows of the terminal, 2 bytes each
)

// What the farm sends.
const (
	AttachStdout  AttachKind = 17 // number of the piece, 8 bytes, and its bytes
	AttachStderr  AttachKind = 18 // the same
	AttachDropped AttachKind = 19 // number of the last piece that was not kept, 8 bytes
	AttachExit    AttachKind = 20 // number, 8 bytes, and ExitData as JSON; nothing follows
	AttachTaken   AttachKind = 21 // how many bytes of input the process has, 8 bytes; an end counts as one
	AttachRefused AttachKind = 22 // AttachError as JSON: what was sent was not done, and the connection continues
)

// AppendAttach appends the head of a numbered message.
func AppendAttach(to []byte, kind AttachKind, number uint64) []byte {
	return binary.BigEndian.AppendUint64(append(to, byte(kind)), number)
}

// AppendAttachSize appends an AttachResize message.
func AppendAttachSize(to []byte, size TerminalSize) []byte {
	to = binary.BigEndian.AppendUint16(append(to, byte(AttachResize)), uint16(size.Cols)) //nolint:gosec // both are up to 1000
	return binary.BigEndian.AppendUint16(to, uint16(size.Rows))                           //nolint:gosec // as above
}

// AttachError says why something that was sent was not done.
type AttachError struct {
	Code   string `json:"code" doc:"as in Problem"`
	Detail string `json:"detail" doc:"a sentence"`
}
