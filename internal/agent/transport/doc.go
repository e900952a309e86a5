// Package transport passes bytes between a sandbox and its worker, at both ends: a connection made of a request and its answer (Conn), a server on
// the sandbox's loopback (DialPort, JoinPort), and the way out of a sandbox without a network (Egress). Each direction ends by itself, what was
// broken off does not look complete at the other end, and a receiver that does not read holds its sender back.
package transport
