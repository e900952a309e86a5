// Package zmtp is the server's end of ZeroMQ's wire protocol, ZMTP 3.0 (RFC 23) with the mechanism NULL, as far as a kernel of Jupyter needs it:
// sockets of the types ROUTER, PUB and REP that clients connect to.
//
// It differs from a ZeroMQ library where that one would queue or drop messages: a send writes to the connection, and a peer that takes nothing for
// StallTimeout is disconnected. So nothing grows. Peers connect again by themselves.
package zmtp
