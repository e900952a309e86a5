package httpserver

// DefaultConnections is for tests.
var DefaultConnections = defaultConnections

// HeaderLines is for tests.
const HeaderLines = headerLines
