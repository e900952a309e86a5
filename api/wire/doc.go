// Package wire holds the JSON types of the public REST API: what requests carry and what answers look like. The server
// and the Go client share them, and the OpenAPI document is made from them: the tag doc says what a field means, enum
// and default what it may hold. The package imports only the standard library and has no behaviour of its own apart
// from encoding. Arrays are never null; times are RFC 3339 in UTC; sizes are bytes unless the name says otherwise.
package wire
