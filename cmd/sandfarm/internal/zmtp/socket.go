package zmtp

import (
	"bufio"
	"bytes"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// StallTimeout is how long a peer may take nothing of a message before it is disconnected.
	StallTimeout = 30 * time.Second
	// MaxPeers bounds the connections of a socket.
	MaxPeers = 256
	// MaxSubscriptions bounds what one peer subscribes to.
	MaxSubscriptions = 1000
	// handshakeTimeout bounds the beginning of a connection.
	handshakeTimeout = 30 * time.Second
	// acceptPause is the wait after a connection could not be accepted, such as for want of a descriptor.
	acceptPause = 100 * time.Millisecond
)

// Kind is the type of a socket.
type Kind string

// The types of sockets.
const (
	Router Kind = "ROUTER"
	Pub    Kind = "PUB"
	Rep    Kind = "REP"
)

// Socket is a socket that peers connect to. Serve makes one.
type Socket struct {
	kind     Kind
	listener net.Listener
	receive  func(*Peer, [][]byte)
	work     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	peers  []*Peer
}

// Peer is one connection to a socket.
type Peer struct {
	socket   *Socket
	conn     net.Conn
	identity string

	writing sync.Mutex

	mu     sync.Mutex
	topics [][]byte
}

// Serve takes connections from a listener until Close. receive is called with each message, for the messages of one peer in their order; while it
// runs no more is read from that peer. It may be nil for a PUB socket.
func Serve(listener net.Listener, kind Kind, receive func(*Peer, [][]byte)) *Socket {
	s := &Socket{kind: kind, listener: listener, receive: receive}
	s.work.Go(s.accept)
	return s
}

func (s *Socket) accept() {
	for {
		conn, err := s.listener.Accept()
		s.mu.Lock()
		closed, full := s.closed, len(s.peers) >= MaxPeers
		s.mu.Unlock()
		switch {
		case closed:
			if err == nil {
				_ = conn.Close()
			}
			return
		case err != nil:
			time.Sleep(acceptPause) //nolint:forbidigo // it is short, and Close need not cut it
		case full:
			_ = conn.Close()
		default:
			s.work.Go(func() { s.serve(&Peer{socket: s, conn: conn}) })
		}
	}
}

// serve serves one connection until it ends.
func (s *Socket) serve(p *Peer) {
	defer func() { _ = p.conn.Close() }()
	if !s.add(p) {
		return
	}
	defer s.remove(p)
	in := reader{bufio.NewReader(p.conn)}
	if p.handshake(in) != nil {
		return
	}
	for {
		frames, err := in.message(p.command)
		switch {
		case err != nil:
			return
		case s.kind == Pub:
			if len(frames) == 1 && len(frames[0]) > 0 && !p.subscribe(frames[0][1:], frames[0][0] == 1) {
				return
			}
		default:
			s.receive(p, frames)
		}
	}
}

// handshake greets the peer and learns its identity.
func (p *Peer) handshake(in reader) error {
	if err := p.conn.SetReadDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	if err := p.write(net.Buffers{greeting()}); err != nil {
		return err
	}
	if err := checkGreeting(in.from); err != nil {
		return err
	}
	if err := p.write(ready(p.socket.kind)); err != nil {
		return err
	}
	flags, body, err := in.next(maxCommandBytes)
	if err != nil {
		return err
	}
	name, data, err := parseCommand(body)
	if err != nil || flags&flagCommand == 0 || name != "READY" {
		return errProtocol
	}
	properties, err := parseReady(data)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.identity = properties["Identity"]
	p.mu.Unlock()
	return p.conn.SetReadDeadline(time.Time{})
}

// command handles a command that comes after the handshake.
func (p *Peer) command(name string, data []byte) error {
	switch {
	case name == "PING" && len(data) >= 2:
		return p.write(command("PONG", data[2:]))
	case (name == "SUBSCRIBE" || name == "CANCEL") && !p.subscribe(data, name == "SUBSCRIBE"):
		return errProtocol
	}
	return nil
}

// subscribe notes what a peer wants, and reports false if that is too much.
func (p *Peer) subscribe(topic []byte, on bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.topics = append(p.topics, slices.Clone(topic))
	} else if i := slices.IndexFunc(p.topics, func(t []byte) bool { return bytes.Equal(t, topic) }); i >= 0 {
		p.topics = slices.Delete(p.topics, i, i+1)
	}
	return len(p.topics) <= MaxSubscriptions
}

func (p *Peer) wants(topic []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.topics, func(t []byte) bool { return bytes.HasPrefix(topic, t) })
}

// Identity is what the peer calls itself; "": nothing.
func (p *Peer) Identity() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.identity
}

// Send sends a message of at least one frame. An error means that the peer is no longer connected.
func (p *Peer) Send(frames [][]byte) error {
	var out net.Buffers
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		out = frame(out, flags, f)
	}
	return p.write(out)
}

// write writes a whole message, command or greeting. After an error the connection is closed, since a part may have been written.
func (p *Peer) write(out net.Buffers) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	err := p.conn.SetWriteDeadline(time.Now().Add(StallTimeout))
	if err == nil {
		_, err = out.WriteTo(p.conn)
	}
	if err != nil {
		_ = p.conn.Close()
	}
	return err
}

// Publish sends a message to the peers that subscribe to its first frame.
func (s *Socket) Publish(frames [][]byte) {
	for _, p := range s.all() {
		if p.wants(frames[0]) {
			_ = p.Send(frames) // the peer may be gone
		}
	}
}

// Find returns the newest peer with an identity; nil: there is none.
func (s *Socket) Find(identity string) *Peer {
	var out *Peer
	for _, p := range s.all() {
		if p.Identity() == identity {
			out = p
		}
	}
	return out
}

func (s *Socket) all() []*Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.peers)
}

func (s *Socket) add(p *Peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.peers = append(s.peers, p)
	}
	return !s.closed
}

func (s *Socket) remove(p *Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers = slices.DeleteFunc(s.peers, func(other *Peer) bool { return other == p })
}

// Close ends all connections and waits for receive to return.
func (s *Socket) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	_ = s.listener.Close()
	for _, p := range s.all() {
		_ = p.conn.Close()
	}
	s.work.Wait()
}
