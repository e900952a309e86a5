package farm

import "time"

// EgressEntry is one connection, or one request over plain HTTP, that a sandbox of the network allowlist asked for. It holds no path, header or
// content.
type EgressEntry struct {
	ID         string    `json:"-"` // its place in the log, which the store gives it
	At         time.Time `json:"at"`
	Host       string    `json:"host"`           // as it was asked for; user code chooses it
	Port       int       `json:"port,omitempty"` // 0: none, or not a valid one
	Method     string    `json:"method"`         // CONNECT for HTTPS, or that of the request
	Verdict    string    `json:"verdict"`        // allowed, denied or failed
	Reason     string    `json:"reason,omitempty"`
	Sent       int64     `json:"sent,omitempty"` // bytes, as Received
	Received   int64     `json:"received,omitempty"`
	DurationMS int64     `json:"duration_ms,omitempty"`
	Secrets    []string  `json:"secrets,omitempty"` // names of the secrets that were added
	Missed     int       `json:"missed,omitempty"`  // connections before this one that are not in the log
}
