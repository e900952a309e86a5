package images

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/binary"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
)

const (
	// networkLife is how long the container of a network exists if this process cannot remove it.
	networkLife = 6 * time.Hour
	// connectsPerMinute bounds the requests of a build to hosts. apt makes one for each package.
	connectsPerMinute = 6000
	// debian are the hosts of Debian's mirrors and security updates.
	debian = "*.debian.org"
)

// Network is what the steps of a build reach.
type Network struct {
	Mode  string       // for engine.BuildSpec
	Addr  string       // host and port where the steps reach the package index and, as a proxy, hosts
	Close func() error // breaks its connections
}

// Docker is an engine that builds images.
type Docker struct{ *engine.Engine }

var _ Engine = Docker{}

// Network starts a container that has loopback alone, in which the agent listens and carries connections to exit. The engine may run on another
// machine.
func (d Docker) Network(ctx context.Context, ref string, exit http.Handler) (n Network, err error) {
	info, err := d.Info(ctx)
	if err != nil {
		return n, err
	}
	program, version, err := binary.Agent(info.Arch)
	if err != nil {
		return n, err
	}
	volume, err := d.EnsureAgent(ctx, version, engine.BuildRuntime, func(context.Context) ([]farm.AgentProgram, error) {
		return []farm.AgentProgram{{Name: path.Base(agent.BinaryPath), Data: program}}, nil
	}, ref)
	if err != nil {
		return n, err
	}
	id, err := d.CreateBuildNetwork(ctx, ref, volume, NetworkCommand())
	if err != nil {
		return n, err
	}
	remove := func() error { return d.Remove(context.WithoutCancel(ctx), id) }
	session, err := d.start(ctx, id, exit)
	if err != nil {
		return n, errors.Join(err, remove())
	}
	return Network{
		Mode: engine.BuildNetwork(id), Addr: agent.EgressAddr,
		Close: func() error { return errors.Join(session.Close(), remove()) },
	}, nil
}

// NetworkCommand is the command of the container of a network.
func NetworkCommand() []string {
	return []string{agent.BinaryPath, "init", "--egress", "--proxy", "--ends-in", networkLife.String()}
}

// start starts the container of a network, and connects its agent to exit.
func (d Docker) start(ctx context.Context, id string, exit http.Handler) (*client.Client, error) {
	if err := d.Start(ctx, id); err != nil {
		return nil, err
	}
	conn, err := d.DialSocket(ctx, id, agent.SocketPath, agent.DialCommand(), agent.DialUser)
	if err != nil {
		return nil, fmt.Errorf("dial agent: %w", err)
	}
	session, err := client.New(conn, client.Options{Egress: exit, Proxy: true})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return session, nil
}

// connect makes a network in which a build reaches a package index and the hosts of the options.
func connect(ctx context.Context, b Builder, ref string, opts Options) (Network, error) {
	rules := opts.Hosts
	if len(rules) == 0 {
		rule, err := farm.ParseHostRule(debian)
		if err != nil {
			return Network{}, err
		}
		rules = []farm.HostRule{rule}
	}
	packages, err := index.New(index.Config{
		PyPIURL: opts.IndexURL, FilesURL: opts.FilesURL, NpmURL: opts.NpmURL, Cache: opts.Cache, Logger: opts.Logger,
	})
	if err != nil {
		return Network{}, err
	}
	proxy := egressproxy.New(egressproxy.Options{Rules: egressproxy.Rules{Allow: rules}, Limits: egressproxy.Limits{ConnectsPerMinute: connectsPerMinute}, Public: reachable})
	n, err := b.Network(ctx, ref, egressproxy.BesideIndex(packages, proxy))
	if err != nil {
		return Network{}, errors.Join(err, packages.Close())
	}
	end := n.Close
	n.Close = func() error {
		proxy.Close()
		return errors.Join(end(), packages.Close())
	}
	return n, nil
}

// reachable reports whether a host of a build may have these addresses. Mirrors of one's own may have private ones. Those of this machine, and link-local ones, where
// clouds have their metadata, are refused.
func reachable(all ...netip.Addr) bool {
	return !egressproxy.OfThisMachine(all...) && !slices.ContainsFunc(all, func(ip netip.Addr) bool { return !ip.Unmap().IsGlobalUnicast() })
}
