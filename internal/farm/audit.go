package farm

import "time"

// AuditEntry says who asked the farm for what, and what came of it. It holds no code, environment, body, query or link.
type AuditEntry struct {
	ID        string    `json:"id"`
	At        time.Time `json:"at"`
	Tenant    string    `json:"tenant"`               // "" for a request whose key is not valid
	KeyID     string    `json:"key_id,omitempty"`     // "" without a key, "local" for the operator on the farm's machine
	Route     string    `json:"route"`                // method and path template
	Subject   string    `json:"subject,omitempty"`    // the id in the path, such as that of a sandbox
	JobID     string    `json:"job_id,omitempty"`     // of the job that was accepted
	SandboxID string    `json:"sandbox_id,omitempty"` // of that job
	From      string    `json:"from"`                 // address of the caller
	Status    int       `json:"status"`               // of the answer
	RequestID string    `json:"request_id"`
	Missed    int       `json:"missed,omitempty"` // entries before this one that were not written
}
