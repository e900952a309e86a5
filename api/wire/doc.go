// Package wire has the JSON types of the public REST API: the bodies of requests and answers. The server and the Go client
// share them, and the OpenAPI document is generated from them: the tag doc describes a field, enum and default its values.
// The package imports only the standard library and has no behaviour apart from encoding. Arrays are never null; times are
// RFC 3339 in UTC; sizes are bytes unless the name says otherwise.
package wire
