package farm

const (
	// LinkSeconds is how long a link to a port works if its request does not say.
	LinkSeconds = 3600
	// MaxLinkSeconds is the longest that one may work.
	MaxLinkSeconds = 7 * 24 * 3600
)

// Port is a port on which a program of a sandbox listens, where the farm reaches it.
type Port struct {
	Number  int    `json:"number"`
	Address string `json:"address"`           // on which it listens, such as 127.0.0.1 or ::
	PID     int    `json:"pid,omitempty"`     // of a process that has it; 0: not known
	Command string `json:"command,omitempty"` // of that process, shortened
}
