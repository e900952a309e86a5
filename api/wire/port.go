package wire

import "time"

// Ports is the answer of GET /v1/sandboxes/{id}/ports.
type Ports struct {
	Items []Port `json:"items" doc:"ports on which programs of the sandbox listen, by number"`
}

// Port is a port on which a program of a sandbox listens.
type Port struct {
	Port    int    `json:"port" doc:"its number"`
	Address string `json:"address" doc:"address on which the program listens; 0.0.0.0 and :: are all of the sandbox"`
	PID     *int   `json:"pid" doc:"process that listens; null: it is not known"`
	Command string `json:"command" doc:"its command, shortened; empty: it is not known"`
}

// PortLinkRequest is the body of POST /v1/sandboxes/{id}/port-links.
type PortLinkRequest struct {
	Port           int  `json:"port" doc:"port of the sandbox" required:"true"`
	ExpiresSeconds *int `json:"expires_seconds,omitempty" doc:"how long the link works, 1 to 604800; default 3600"`
	PathStyle      bool `json:"path_style,omitempty" doc:"make the link a path below the API's own address (/p/…), for programs that do not resolve the host of a port. Its pages have an opaque origin; default false"`
}

// ThisPortLinkRequest is the body of POST /v1/sandboxes/{id}/ports/{port}/link, which may be left out.
type ThisPortLinkRequest struct {
	ExpiresSeconds *int `json:"expires_seconds,omitempty" doc:"how long the link works, 1 to 604800; default 3600"`
	PathStyle      bool `json:"path_style,omitempty" doc:"make the link a path below the API's own address (/p/…), for programs that do not resolve the host of a port. Its pages have an opaque origin; default false"`
}

// PortLink is an address of a port that needs no key.
type PortLink struct {
	URL       string    `json:"url" doc:"address that leads to the port, for whoever has it"`
	Port      int       `json:"port" doc:"the port"`
	ExpiresAt time.Time `json:"expires_at" doc:"when it stops working"`
}

// MaxForwardBytes is the longest message of GET …/tcp/{port}.
const MaxForwardBytes = 64 << 10
