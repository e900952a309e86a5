// Package egress is the way out of a sandbox without a network: it listens on the sandbox's loopback and forwards each connection over a
// stream to a worker, which answers it as a package index and, if the sandbox has hosts that it may reach, as a proxy. The agent decides
// nothing: what may be reached is the worker's decision.
package egress
