package farm

import "strconv"

const (
	// LinkSeconds is how long a link to a port works if its request does not say.
	LinkSeconds = 3600
	// MaxLinkSeconds is the longest that one may work.
	MaxLinkSeconds = 7 * 24 * 3600
	// EgressPort is where programs of a sandbox with a network reach the package indexes and the proxy.
	EgressPort = 3141
)

// Port is a port on which a program of a sandbox listens, where the farm reaches it.
type Port struct {
	Number  int    `json:"number"`
	Address string `json:"address"`           // on which it listens, such as 127.0.0.1 or ::
	PID     int    `json:"pid,omitempty"`     // of a process that has it; 0: not known
	Command string `json:"command,omitempty"` // of that process, shortened
}

// ParsePort reads the number of a port, 1 to 65535: digits without a sign or a leading zero. CodeInvalid otherwise.
func ParsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return 0, Invalidf("%q is not a port: it is a number from 1 to 65535", Shorten(text))
	}
	return uint16(n), nil
}

// ErrOwnPort refuses a port on which the farm itself listens: what is there serves programs of the sandbox only.
func ErrOwnPort(port uint16) error {
	return Invalidf("Port %d of the sandbox is the farm's own and cannot be reached from outside.", port)
}
