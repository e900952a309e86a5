package wire

import "encoding/json"

// List is one page, newest first. NextCursor is empty (null in JSON) on the last page.
type List[T any] struct {
	Items      []T    `json:"items" doc:"the entries of this page"`
	NextCursor Cursor `json:"next_cursor" doc:"send it as cursor to get the next page; null: this is the last"`
}

// Cursor is a place in a list. The empty cursor is null in JSON.
type Cursor string

// MarshalJSON writes null for the empty cursor.
func (c Cursor) MarshalJSON() ([]byte, error) {
	if c == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(c))
}

// Items is a list without pages.
type Items[T any] struct {
	Items []T `json:"items" doc:"the entries"`
}

// BatchRequest is the body of POST /v1/jobs/batch. Each entry is {kind, sandbox_id, …the body of the kind's route}.
type BatchRequest struct {
	Jobs []json.RawMessage `json:"jobs" doc:"entries {kind, sandbox_id, …the body of the route}" required:"true"`
}

// BatchResult is the answer to a batch: one outcome for each entry, in order.
type BatchResult struct {
	Jobs []BatchOutcome `json:"jobs" doc:"one outcome for each entry, in order"`
}

// BatchOutcome is the outcome of one entry of a batch: Job (with Sandbox for a create) or Error.
type BatchOutcome struct {
	Job     *Job     `json:"job,omitempty" doc:"the accepted job"`
	Sandbox *Sandbox `json:"sandbox,omitempty" doc:"the new sandbox of a create"`
	Error   *Problem `json:"error,omitempty" doc:"why the entry was refused"`
}
