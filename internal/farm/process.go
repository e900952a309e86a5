package farm

import (
	"slices"
	"strings"
	"time"
)

// MaxTerminalSide is the largest number of columns or rows of a terminal.
const MaxTerminalSide = 1000

// TerminalSize is the size of a terminal in characters. Both are from 1 to MaxTerminalSide.
type TerminalSize struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// Valid reports whether a terminal can have this size.
func (s TerminalSize) Valid() bool {
	return s.Cols >= 1 && s.Cols <= MaxTerminalSide && s.Rows >= 1 && s.Rows <= MaxTerminalSide
}

// ProcessSpec is what a caller wants to run in a sandbox beside its jobs. Either Command, for the image's shell, or Argv.
type ProcessSpec struct {
	Command  string            `json:"command,omitempty"`
	Argv     []string          `json:"argv,omitempty"`
	Cwd      string            `json:"cwd,omitempty"` // as of a command: relative to the workspace or absolute
	Env      map[string]string `json:"env,omitempty"`
	Name     string            `json:"name,omitempty"`
	Terminal *TerminalSize     `json:"terminal,omitempty"` // nil: pipes instead of a terminal
	Stdin    bool              `json:"stdin,omitempty"`    // it has an input; with a terminal it always has
	Timeout  time.Duration     `json:"timeout,omitempty"`  // 0: it may run as long as the sandbox
	Grace    time.Duration     `json:"grace,omitempty"`    // between SIGTERM and SIGKILL
	Hangup   time.Duration     `json:"hangup,omitempty"`   // without a reader, after which it gets SIGHUP, once; 0: never
	Restart  Restart           `json:"restart,omitempty"`  // empty: never
	Awaited  bool              `json:"awaited,omitempty"`  // its first reader comes at once: output waits for it as for one that reads

	// Fingerprint is that of the request that an idempotency key names; empty: no key. The id that such a request gets has one fingerprint only.
	Fingerprint string `json:"fingerprint,omitempty"`

	MaxProcesses int `json:"max_processes"` // that may run in the sandbox at a time, with this one
	MaxReaders   int `json:"max_readers"`   // of its output at a time
	MaxRestarts  int `json:"max_restarts"`  // one soon after the other
}

// Restart says when a process that has ended is started again.
type Restart string

// The policies. A process that was ended by a DELETE or by its timeout is not started again.
const (
	RestartNever     Restart = "never"
	RestartOnFailure Restart = "on-failure" // after an exit code other than 0
)

// Restarts are the policies by name.
func Restarts() []Restart { return []Restart{RestartNever, RestartOnFailure} }

// ProcessState is the state of a process.
type ProcessState string

// The states.
const (
	ProcessRunning ProcessState = "running"
	ProcessExited  ProcessState = "exited"
)

// Process is a process that was started in a sandbox beside its jobs. It is known as long as its sandbox, unless it was removed, or many others
// have ended since it did.
type Process struct {
	ID        string        `json:"id"`
	PID       int           `json:"pid"` // 0: it waits until it is started again
	Name      string        `json:"name,omitempty"`
	State     ProcessState  `json:"state"`
	Command   string        `json:"command,omitempty"`
	Argv      []string      `json:"argv,omitempty"`
	Terminal  *TerminalSize `json:"terminal,omitempty"`
	Stdin     bool          `json:"stdin,omitempty"`
	Restart   Restart       `json:"restart,omitempty"`
	Restarts  int           `json:"restarts,omitempty"` // how often it was started again
	StartedAt time.Time     `json:"started_at"`         // the first time
	ProcessEnd
	EndedAt time.Time `json:"ended_at,omitzero"`
}

// ProcessEnd says how a process ended; zero while it runs.
type ProcessEnd struct {
	ExitCode    *int `json:"exit_code,omitempty"` // as a shell counts: 128 and the signal's number for one that was killed
	TimedOut    bool `json:"timed_out,omitempty"`
	Stopped     bool `json:"stopped,omitempty"` // by a DELETE
	OutOfMemory bool `json:"out_of_memory,omitempty"`

	Reason string `json:"-"` // at the end of its output: the sentence about the limit that ended it, if OutOfMemory
}

// MaxRunning is how many processes of a sandbox are described at once.
const MaxRunning = 1000

// MaxRunningCommand is the length of a RunningProcess's command in bytes.
const MaxRunningCommand = 256

// OwnerKernel is the owner of what a kernel started, and of the kernel itself.
const OwnerKernel = "kernel"

// RunningProcess is a process of a sandbox, whoever started it.
type RunningProcess struct {
	PID         int       `json:"pid"`
	Parent      int       `json:"parent"`
	Owner       string    `json:"owner,omitempty"` // id of the process or job, or OwnerKernel; empty: unknown. The code in the sandbox can change it
	Command     string    `json:"command"`         // its arguments, up to MaxRunningCommand bytes
	CPUSeconds  float64   `json:"cpu_seconds"`
	MemoryBytes int64     `json:"memory_bytes"` // that are in memory, those that it shares with others too
	StartedAt   time.Time `json:"started_at"`
}

// SandboxUse is what a sandbox uses now. A figure that its kernel does not tell is 0.
type SandboxUse struct {
	Cores       float64       `json:"cores"`  // of CPU time, on average since it was asked before, or since the sandbox's agent started
	CPU         time.Duration `json:"cpu_ns"` // since the start of the sandbox; under gVisor that of the processes that run
	MemoryBytes int64         `json:"memory_bytes"`
	CacheBytes  int64         `json:"cache_bytes"` // of MemoryBytes, what the kernel can free
	DiskBytes   int64         `json:"disk_bytes"`  // of the workspace
}

// OutputKind is the kind of a piece of a process's output.
type OutputKind string

// The kinds. A dropped one says that output before the next piece is gone: it was not read while it was kept. An exit is always the last.
const (
	OutputStdout  OutputKind = "stdout"
	OutputStderr  OutputKind = "stderr"
	OutputDropped OutputKind = "dropped"
	OutputExit    OutputKind = "exit"
)

// Output is one piece of what a process wrote, or its end. Seq counts from 1; a reader continues after the last piece it has.
type Output struct {
	Seq  uint64
	Kind OutputKind
	Data []byte
	End  *ProcessEnd // of an exit
}

// signals are those that can be sent to a process, by the number that they have on every Linux that the farm supports.
var signals = map[string]int{
	"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15, "CONT": 18, "STOP": 19, "TSTP": 20, "WINCH": 28,
}

// Signal finds a signal by its name, such as SIGTERM or TERM.
func Signal(name string) (number int, err error) {
	number, ok := signals[strings.TrimPrefix(name, "SIG")]
	if !ok {
		return 0, Invalidf("signal %q cannot be sent: it is one of %s", Shorten(name), strings.Join(SignalNames(), ", "))
	}
	return number, nil
}

// SignalNames lists the signals that can be sent.
func SignalNames() []string {
	names := make([]string, 0, len(signals))
	for name := range signals {
		names = append(names, "SIG"+name)
	}
	slices.Sort(names)
	return names
}
