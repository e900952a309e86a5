package wire

import "encoding/json"

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
