// Package egress lets installers in a sandbox without a network reach the package indexes: it listens on the sandbox's loopback
// and forwards each connection over a stream to a worker, which answers it.
package egress
