package farm

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
