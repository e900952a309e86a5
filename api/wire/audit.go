package wire

import "time"

// AuditEntry says who asked the farm for what, and what came of it.
type AuditEntry struct {
	ID        string    `json:"id" doc:"id of the entry"`
	At        time.Time `json:"at" doc:"when it happened"`
	Tenant    string    `json:"tenant" doc:"tenant of the caller; empty: without a valid key"`
	KeyID     string    `json:"key_id" doc:"id of the caller's key; empty: none; local: the operator on the farm's machine"`
	Route     string    `json:"route" doc:"method and path template of the request"`
	Subject   string    `json:"subject" doc:"the id in the path; empty: none"`
	JobID     string    `json:"job_id" doc:"the job that was accepted, or canceled by a tool; empty: none"`
	SandboxID string    `json:"sandbox_id" doc:"the sandbox of that job; empty: none"`
	From      string    `json:"from" doc:"address of the caller; local: this machine, without the network"`
	Status    int       `json:"status" doc:"status of the answer; 202 for an accepted job"`
	RequestID string    `json:"request_id" doc:"id of the request, found in the server's log"`
	Missed    int       `json:"missed" doc:"entries before this one that could not be kept; they are in the server's log, except for floods of requests without a key"`
}
