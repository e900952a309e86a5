package server

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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
