package wire

import "time"

// EgressEntry is one connection, or one request over plain HTTP, that a sandbox of the network allowlist asked for.
type EgressEntry struct {
	ID         string    `json:"id" doc:"id of the entry; send it as after to read what follows"`
	At         time.Time `json:"at" doc:"when the connection was asked for"`
	Host       string    `json:"host" doc:"host that was asked for; code in the sandbox chooses it"`
	Port       int       `json:"port" doc:"its port; 0: none, or not a valid one"`
	Method     string    `json:"method" doc:"CONNECT for HTTPS and other TLS, or the method of a request over plain HTTP"`
	Verdict    string    `json:"verdict" doc:"allowed, denied by a rule or a limit, or failed: allowed but not reached, or broken" enum:"allowed,denied,failed"`
	Reason     string    `json:"reason" doc:"why it was denied or failed; empty: it was allowed"`
	Sent       int64     `json:"sent" doc:"bytes to the host"`
	Received   int64     `json:"received" doc:"bytes from the host"`
	DurationMS int64     `json:"duration_ms" doc:"how long it lasted"`
	Secrets    []string  `json:"secrets" doc:"names of the secrets that were added to the request"`
	Missed     int       `json:"missed" doc:"connections before this one that are not in the log, because there were too many at once"`
}
