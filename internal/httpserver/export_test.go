package httpserver

// DefaultConnections is for tests.
var DefaultConnections = defaultConnections
