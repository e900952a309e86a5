package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// portStreams counts the connections to ports. The zero value has none.
type portStreams struct{ open atomic.Int64 }

// enter counts one more connection; the returned function ends it.
func (p *portStreams) enter() (leave func(), err error) {
	if p.open.Add(1) > agent.MaxPortStreams {
		p.open.Add(-1)
		return nil, farm.Errorf(farm.CodeExhausted, "The sandbox has %d connections to its ports, the most that it may have. Close those that you do not need.", agent.MaxPortStreams)
	}
	return func() { p.open.Add(-1) }, nil
}

// putPort connects the request and its answer, as package transport has them, to a port of the loopback.
func (s *Server) putPort(w http.ResponseWriter, r *http.Request) (any, error) {
	out := http.NewResponseController(w)
	if err := out.EnableFullDuplex(); err != nil { // first: without it, even a refusal would wait for the body
		return nil, err
	}
	number, err := s.checkPort(r.PathValue("port"))
	if err != nil {
		return nil, err
	}
	leave, err := s.ports.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	conn, err := transport.DialPort(r.Context(), number, dialTCP)
	if err != nil {
		return nil, err
	}
	w.Header().Set("Content-Type", agent.StreamType)
	w.Header().Set("Transfer-Encoding", "identity") // without chunks, whose lengths would be writes of their own: the frames tell the end
	w.WriteHeader(http.StatusOK)
	if err := out.Flush(); err != nil {
		conn.Abort()
		return nil, err
	}
	stop := context.AfterFunc(s.life, func() { _ = conn.Close() }) //nolint:contextcheck // the agent ends, not the request
	defer stop()
	transport.JoinPort(conn, transport.NewDuplex(transport.Streams{From: r.Body, To: w, Flush: out.Flush}))
	return nil, nil
}

// checkPort reads the number of a port. The agent's own are refused.
func (s *Server) checkPort(text string) (uint16, error) {
	n, err := farm.ParsePort(text)
	if err == nil && s.ownPort(n) {
		err = farm.ErrOwnPort(n)
	}
	return n, err
}

// ownPort reports whether a port is the agent's.
func (s *Server) ownPort(port uint16) bool {
	_, own, err := net.SplitHostPort(s.EgressAddr())
	return err == nil && own == strconv.Itoa(int(port))
}

func dialTCP(ctx context.Context, address string) (*net.TCPConn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil //nolint:errcheck // a tcp connection is one
}

const (
	// stateListen is how the kernel's tables write that a socket listens.
	stateListen = "0A"
	// maxCommand bounds the command of a process in the list of ports, in bytes.
	maxCommand = 200
)

// getPorts lists the ports on which programs listen and that putPort reaches.
func (s *Server) getPorts(http.ResponseWriter, *http.Request) (any, error) {
	found := map[int]farm.Port{}
	sockets := map[string]int{} // ports, by the name of their socket
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		text, err := os.ReadFile(table) //nolint:gosec // one of two names
		if err != nil {
			continue // there is no IPv6
		}
		for _, l := range listeners(text) {
			reached := l.address.IsUnspecified() || l.address == netip.IPv6Loopback() || l.address.Unmap() == netip.AddrFrom4([4]byte{127, 0, 0, 1})
			if _, known := found[l.port]; known || !reached || s.ownPort(uint16(l.port)) || len(found) == agent.MaxPorts { //nolint:gosec // it has 16 bits
				continue
			}
			found[l.port] = farm.Port{Number: l.port, Address: l.address.String()}
			sockets["socket:["+l.inode+"]"] = l.port
		}
	}
	owners(sockets, found)
	out := make([]farm.Port, 0, len(found))
	for _, p := range found {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b farm.Port) int { return cmp.Compare(a.Number, b.Number) })
	return out, nil
}

// listener is a line of the kernel's table.
type listener struct {
	address netip.Addr
	port    int
	inode   string
}

// listeners reads /proc/net/tcp or tcp6. Lines that it does not understand are left out.
func listeners(table []byte) []listener {
	var out []listener
	for line := range bytes.Lines(table) {
		fields := strings.Fields(string(line))
		if len(fields) < 10 || fields[3] != stateListen {
			continue
		}
		host, port, _ := strings.Cut(fields[1], ":")
		raw, err := hex.DecodeString(host)
		number, bad := strconv.ParseUint(port, 16, 16)
		if err != nil || bad != nil || len(raw)%4 != 0 {
			continue
		}
		for i := 0; i < len(raw); i += 4 { // words in the order of the machine
			binary.BigEndian.PutUint32(raw[i:], binary.NativeEndian.Uint32(raw[i:]))
		}
		if address, ok := netip.AddrFromSlice(raw); ok {
			out = append(out, listener{address: address, port: int(number), inode: fields[9]}) //nolint:gosec // it has 16 bits
		}
	}
	return out
}

// owners adds the processes that have the sockets, as far as they can be seen.
func owners(sockets map[string]int, found map[int]farm.Port) {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		to, err := os.Readlink(link)
		port, ok := sockets[to]
		if err != nil || !ok || found[port].PID != 0 {
			continue
		}
		p := found[port]
		pid := strings.Split(link, "/")[2]
		p.PID, _ = strconv.Atoi(pid)
		if line, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); err == nil { //nolint:gosec // pid is a number
			line = bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte(" "))
			p.Command = strings.ToValidUTF8(string(line[:min(len(line), maxCommand)]), "")
		}
		found[port] = p
	}
}
