package e2b

import (
	"encoding/json"
	"time"
)

// createRequest is the body of a create. Fields that a newer SDK has and this farm does not know are ignored.
type createRequest struct {
	TemplateID    string            `json:"templateID"`
	Timeout       *int              `json:"timeout"` // seconds
	Metadata      map[string]string `json:"metadata"`
	EnvVars       map[string]string `json:"envVars"`
	AutoPause     bool              `json:"autoPause"`
	AllowInternet *bool             `json:"allow_internet_access"`
	Network       *networkRequest   `json:"network"`
	MCP           json.RawMessage   `json:"mcp"`
	IAM           json.RawMessage   `json:"iam"`
	VolumeMounts  []json.RawMessage `json:"volumeMounts"`
}

// networkRequest is what a create says of the network.
type networkRequest struct {
	AllowPublicTraffic *bool           `json:"allowPublicTraffic"`
	AllowOut           []string        `json:"allowOut"`
	DenyOut            []string        `json:"denyOut"`
	Rules              json.RawMessage `json:"rules"`
	EgressProxy        json.RawMessage `json:"egressProxy"`
	DNSServers         []string        `json:"dnsServers"`
	MaskRequestHost    string          `json:"maskRequestHost"`
}

// timeoutRequest is the body of a change of the timeout, and of a connect.
type timeoutRequest struct {
	Timeout *int `json:"timeout"` // seconds
}

// madeSandbox is the answer to a create and to a connect.
type madeSandbox struct {
	TemplateID  string `json:"templateID"`
	SandboxID   string `json:"sandboxID"`
	Alias       string `json:"alias"`
	ClientID    string `json:"clientID"`
	EnvdVersion string `json:"envdVersion"`
	Access      string `json:"envdAccessToken"`
	Traffic     string `json:"trafficAccessToken"`
	Domain      string `json:"domain,omitempty"`
}

// shownSandbox is a sandbox as lists and reads have it.
type shownSandbox struct {
	TemplateID  string            `json:"templateID"`
	SandboxID   string            `json:"sandboxID"`
	Alias       string            `json:"alias"`
	ClientID    string            `json:"clientID"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	EnvdVersion string            `json:"envdVersion"`
	CPUCount    int               `json:"cpuCount"`
	MemoryMB    int               `json:"memoryMB"`
	DiskSizeMB  int               `json:"diskSizeMB"`
	State       string            `json:"state"`
	Metadata    map[string]string `json:"metadata"`
	Domain      string            `json:"domain,omitempty"`
}
