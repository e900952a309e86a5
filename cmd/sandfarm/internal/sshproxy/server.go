// Package sshproxy is the SSH server of one sandbox for the one client that started it: "sandfarm ssh-proxy" as a ProxyCommand. Shells and
// commands are processes of the sandbox, sftp is its files, and forwarded ports are its loopback. All of it goes over the farm's API with the
// caller's key. It promises that nothing but the caller's pipe reaches it, and holds no state beyond the connection.
package sshproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandfarm/sandfarm/client"
)

const (
	// MaxChannels is how many channels (sessions and forwarded connections) of one connection are open at once. More are refused.
	MaxChannels = 128
	// leaveTimeout bounds what is done after the client has left.
	leaveTimeout = 10 * time.Second
)

// Config is what a connection needs. All fields are required.
type Config struct {
	Client  *client.Client
	Sandbox string
	HostKey ssh.Signer
	Copy    func(to io.Writer, content io.Reader) (int64, error) // copies a file of the sandbox to this machine; it has a bound
	Log     *slog.Logger
}

// server serves one connection.
type server struct {
	Config
	channels chan struct{} // one element for each that is open
	work     sync.WaitGroup
}

// Serve serves the SSH client at the other end of pipe until it leaves or ctx ends, and closes pipe. The client needs no key of its own: whoever
// can use the pipe has started this program, and so has the key of the farm.
func Serve(ctx context.Context, pipe io.ReadWriteCloser, cfg Config) error {
	own := &ssh.ServerConfig{NoClientAuth: true, ServerVersion: "SSH-2.0-Sandfarm"}
	own.AddHostKey(cfg.HostKey)
	ctx, done := context.WithCancel(ctx)
	defer done()
	stop := context.AfterFunc(ctx, func() { _ = pipe.Close() })
	defer stop()
	conn, channels, requests, err := ssh.NewServerConn(pipeConn{pipe}, own)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil // the client has left
		}
		return fmt.Errorf("begin SSH: %w", err)
	}
	defer func() { _ = conn.Close() }()
	s := &server{Config: cfg, channels: make(chan struct{}, MaxChannels)}
	s.work.Go(func() { ssh.DiscardRequests(requests) }) // keepalives are answered; ports of the client are not forwarded
	for made := range channels {
		s.accept(ctx, made)
	}
	done()
	s.work.Wait()
	return nil
}

// accept begins a channel, or refuses it.
func (s *server) accept(ctx context.Context, made ssh.NewChannel) {
	var serve func(context.Context, ssh.NewChannel)
	switch made.ChannelType() {
	case "session":
		serve = s.session
	case "direct-tcpip":
		serve = s.forward
	default:
		_ = made.Reject(ssh.UnknownChannelType, "a sandbox has shells, commands, sftp and connections to its own ports")
		return
	}
	select {
	case s.channels <- struct{}{}:
	default:
		_ = made.Reject(ssh.ResourceShortage, fmt.Sprintf("%d channels are open", MaxChannels))
		return
	}
	s.work.Go(func() {
		defer func() { <-s.channels }()
		serve(ctx, made)
	})
}

// pipeConn makes a connection of a pipe, which has no addresses and no deadlines.
type pipeConn struct{ io.ReadWriteCloser }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

func (pipeConn) LocalAddr() net.Addr              { return pipeAddr{} }
func (pipeConn) RemoteAddr() net.Addr             { return pipeAddr{} }
func (pipeConn) SetDeadline(time.Time) error      { return nil }
func (pipeConn) SetReadDeadline(time.Time) error  { return nil }
func (pipeConn) SetWriteDeadline(time.Time) error { return nil }
