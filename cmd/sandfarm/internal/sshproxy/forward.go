package sshproxy

import (
	"context"
	"log/slog"
	"net"
	"strings"

	"golang.org/x/crypto/ssh"
)

// forward carries a connection to a port of the sandbox (ssh -L, -D and -W).
func (s *server) forward(ctx context.Context, made ssh.NewChannel) {
	var to struct {
		Host   string
		Port   uint32
		Origin string
		From   uint32
	}
	if err := ssh.Unmarshal(made.ExtraData(), &to); err != nil || to.Port == 0 || to.Port > 65535 {
		_ = made.Reject(ssh.ConnectionFailed, "that is no port")
		return
	}
	if !s.own(to.Host) {
		_ = made.Reject(ssh.Prohibited, "only ports of the sandbox itself are reached: forward to localhost")
		return
	}
	port, err := s.Client.DialPort(ctx, s.Sandbox, int(to.Port))
	if err != nil {
		_ = made.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	channel, requests, err := made.Accept()
	if err != nil {
		port.Close()
		return
	}
	s.work.Go(func() { ssh.DiscardRequests(requests) })
	if err := port.Carry(ctx, channelConn{channel, pipeConn{channel}}); err != nil && ctx.Err() == nil {
		s.Log.DebugContext(ctx, "a forwarded connection broke off", slog.Any("error", err))
	}
}

// own reports whether a name means the sandbox itself, as seen from inside.
func (s *server) own(host string) bool {
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback() || ip.IsUnspecified()
	}
	return strings.EqualFold(host, "localhost") || SandboxOf(host) == s.Sandbox
}

// channelConn makes a connection of a channel, whose directions end by themselves.
type channelConn struct {
	ssh.Channel
	pipeConn
}

func (c channelConn) Read(p []byte) (int, error)  { return c.Channel.Read(p) }
func (c channelConn) Write(p []byte) (int, error) { return c.Channel.Write(p) }
func (c channelConn) Close() error                { return c.Channel.Close() }
