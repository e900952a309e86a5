package wire

import "time"

// DrainRequest is the body of POST /v1/nodes/{id}/drain.
type DrainRequest struct {
	Idle *string `json:"idle,omitempty" enum:"keep,hibernate,close" default:"keep" doc:"what becomes of sandboxes that were not used for 30 seconds: keep leaves them until they end, hibernate stores those that can on the disk of the node, close closes them"`
}

// Drain says that a node takes no new sandboxes, and what is left on it.
type Drain struct {
	Node       string     `json:"node" doc:"the node"`
	Since      time.Time  `json:"since" doc:"since when it is drained"`
	Idle       string     `json:"idle" enum:"keep,hibernate,close" doc:"what becomes of its idle sandboxes"`
	State      string     `json:"state" enum:"draining,hibernated,drained" doc:"draining: sandboxes or jobs are left, or a worker does not know yet; hibernated: only hibernated sandboxes are left, so the host may be restarted but not removed; drained: nothing is left, so the host may be removed"`
	Sandboxes  int        `json:"sandboxes" doc:"open sandboxes that are left, hibernated ones too"`
	Hibernated int        `json:"hibernated" doc:"hibernated ones among them"`
	Jobs       int        `json:"jobs" doc:"jobs that its workers run, as of their last heartbeats"`
	EndsBy     *time.Time `json:"ends_by" doc:"when the last of its sandboxes expires, unless its deadline is moved; null if none is left"`
}
