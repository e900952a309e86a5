package wire

import "time"

// KeyRequest is the body of POST /v1/keys.
type KeyRequest struct {
	Tenant         string   `json:"tenant" doc:"tenant that owns what is created with the key: 1 to 64 letters, digits, dots, dashes and underscores, not only dots, and none of fleet, nodes, pool and room" required:"true"`
	Name           string   `json:"name,omitempty" doc:"free text, such as who has the key"`
	Scopes         []string `json:"scopes,omitempty" doc:"what the key may do: run, read, metrics, admin; default run"`
	ExpiresSeconds *int     `json:"expires_seconds,omitempty" doc:"seconds until the key expires, at least 1; default: never"`
}

// Key is an API key without the key itself, which cannot be read again.
type Key struct {
	ID         string     `json:"id" doc:"id of the key"`
	Tenant     string     `json:"tenant" doc:"tenant that owns what is created with the key"`
	Name       string     `json:"name" doc:"free text"`
	Scopes     []string   `json:"scopes" doc:"what the key may do: run, read, metrics, admin; empty for a key of the settings without scopes, which has run and metrics and sees the whole fleet"`
	Origin     string     `json:"origin" doc:"where the key was made: by this API, or in the farm's settings" enum:"api,settings"`
	CreatedAt  *time.Time `json:"created_at" doc:"when it was made; null for a key of the settings"`
	ExpiresAt  *time.Time `json:"expires_at" doc:"when it expires or has expired; null: never"`
	LastUsedAt *time.Time `json:"last_used_at" doc:"its last use, to about a minute; null: never used, or a key of the settings"`
}

// NewKey is the answer to POST /v1/keys: the only one that contains the key.
type NewKey struct {
	Key    Key    `json:"key" doc:"the record of the key"`
	Secret string `json:"secret" doc:"the key itself; it is shown only now"`
}
