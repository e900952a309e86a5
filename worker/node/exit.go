package node

import (
	"context"
	"net/http"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Exit is the proxy of a sandbox of the network allowlist, for one connection to its agent.
type Exit interface {
	http.Handler
	Close()
}

// way is what a sandbox can reach.
type way int

const (
	nothing     way = iota
	indexOnly       // the package indexes
	indexAndAll     // the package indexes, and hosts through a proxy
)

// wayOf is what a sandbox's agent and the worker agree on when its container is made and when the worker connects to it.
func (n *Node) wayOf(s *farm.Sandbox) way {
	switch {
	case s.Spec.Network == farm.NetworkAllowlist && n.deps.Exit != nil:
		return indexAndAll
	case s.Spec.Network == farm.NetworkPackages && n.deps.Index != nil:
		return indexOnly
	default:
		return nothing
	}
}

// exit answers the connections that a sandbox's agent opens. The caller calls end when the connection to the agent has ended.
func (n *Node) exit(ctx context.Context, s *farm.Sandbox) (o client.Options, end func()) {
	switch n.wayOf(s) {
	case indexOnly:
		return client.Options{Egress: n.deps.Index}, func() {}
	case indexAndAll:
		proxy := n.deps.Exit(ctx, s)
		return client.Options{Egress: egressproxy.BesideIndex(n.deps.Index, proxy), Proxy: true}, proxy.Close
	default:
		return client.Options{}, func() {}
	}
}
