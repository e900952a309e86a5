package httpserver

// DefaultConnections is for tests.
var DefaultConnections = defaultConnections

// The limits are for tests.
const (
	HeaderLines = headerLines
	MaxChain    = maxChain
	MaxKeyBits  = maxKeyBits
)
