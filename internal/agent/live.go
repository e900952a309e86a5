package agent

import (
	"net/http"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// LivePrefix begins the paths that callers of the farm reach over the live path: workers pass them on as they are. Nothing below it may do what
// a caller with the scope run must not do to its own sandbox.
const LivePrefix = "/v1/live/"

// ProcessesPath is where an agent has the processes that run beside jobs.
const ProcessesPath = LivePrefix + "processes"

// PortsPath is where an agent has the ports of the sandbox's loopback.
const PortsPath = LivePrefix + "ports"

// StreamType is the media type of the request and the answer of a connection to a port, whose frames package duplex has.
const StreamType = "application/x-sandfarm-stream"

const (
	// MaxPortStreams is how many connections to ports of a sandbox may be open at once.
	MaxPortStreams = 256

	// WindowBytes is how much output of a process is kept for readers that come, or come again. Sandboxes of little memory keep less.
	WindowBytes = 1 << 20
	// OutputBytes is about how much output one answer has. Its reader asks for more then, so this much is on its way to a slow one.
	OutputBytes = 256 << 10
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
