// Package egress is what a worker does for the network allowlist: it has a proxy for each sandbox of that network whose agent it is connected
// to, gives it the rules of the sandbox's record, also when they change, and writes what it reports to the sandbox's log. What may be
// connected to, and how, is package egressproxy's to decide.
package egress
