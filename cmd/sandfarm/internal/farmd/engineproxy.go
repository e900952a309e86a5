package farmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"slices"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/engineproxy"
)

// defaultEngine is the engine behind a proxy. Not DOCKER_HOST: on the host of a proxy that names the proxy.
const defaultEngine = "unix:///var/run/docker.sock"

// RunEngineProxy runs the proxy between workers and the engine until ctx ends.
func RunEngineProxy(ctx context.Context, s *Settings) (err error) {
	host := cmp.Or(s.EngineProxy.Host, defaultEngine)
	if host == "unix://"+s.EngineProxy.Socket {
		return fmt.Errorf("engine_proxy.host and engine_proxy.socket are both %s: the first is the engine behind the proxy", s.EngineProxy.Socket)
	}
	log := s.Log.logger()
	namespace := cmp.Or(s.Engine.Namespace, engine.DefaultNamespace)
	e, err := engine.New(engine.Config{Host: host, Runtime: s.Engine.Runtime, Namespace: namespace, Logger: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	rules := engine.Rules{Limits: s.Limits, Runtimes: s.Engine.runtimes("")[1:]}
	if s.EngineProxy.Builds {
		rules.Build = images.NetworkCommand()
	}
	p := engineproxy.New(engineproxy.Config{
		Namespace: namespace, Checker: e.NewChecker(rules), Dial: e.Connect,
		Exec: dialsAgent, Builds: s.EngineProxy.Builds, MaxBody: proxyMaxBody, Log: log,
	})
	defer p.Close()
	return p.Serve(ctx, engineproxy.Socket{
		Path: s.EngineProxy.Socket, Mode: s.EngineProxy.mode(), MaxConnections: proxyMaxConnections,
	}, nil)
}

const (
	// proxyMaxBody is how many bytes of a body the proxy checks. The longest is that of a create: its variables, and 64 KiB.
	proxyMaxBody = 4 << 20
	// proxyMaxConnections are connections to the proxy at a time; others wait. Each sandbox that a worker uses has one.
	proxyMaxConnections = 4096
)

// dialsAgent reports whether an exec is the one by which workers reach the agent of a sandbox.
func dialsAgent(user string, command []string) bool {
	return user == fmt.Sprintf("%d:%d", agent.DialUID, agent.DialUID) && slices.Equal(command, []string{agent.BinaryPath, "dial"})
}

// mode is the mode of the proxy's socket.
func (s ProxySettings) mode() fs.FileMode {
	switch s.Access {
	case "owner":
		return 0o600
	case "all":
		return 0o666
	default:
		return 0o660
	}
}

// proxyHealth asks the engine for a sign of life through the proxy on this host.
func proxyHealth(ctx context.Context, socket string) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/_ping", nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask the engine proxy: %w", err)
	}
	if err := resp.Body.Close(); err != nil {
		return fmt.Errorf("ask the engine proxy: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the engine behind the proxy answers %s", resp.Status)
	}
	return nil
}
