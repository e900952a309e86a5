package httpserver

import (
	"fmt"
	"net"
	"os"

	"github.com/sandfarm/sandfarm/internal/budget"
)

const (
	// receiveBytes is how much of what was sent the kernel keeps until it is read, for each connection, in twice as much memory: without a bound up to the
	// last number of net.ipv4.tcp_rmem, which no budget counts, where a reader was fast before it was slow. Linux lets a program have 208 KiB.
	receiveBytes = 192 << 10
	// firstBytes is the same until a connection has a longer body of a caller that is known: a server has thousands, and with cgroups v2 this memory is the
	// process's. It is what Linux begins with: with less, packets are dropped that did fit when they were sent.
	firstBytes = 64 << 10
	// raised is how many connections of a server have more than that.
	raised = 64
	// largeBytes is how much memory connections without such a bound may take. Transfers from far away need it: with 100 ms there and back the bound lets
	// 2 MB through in a second.
	largeBytes = 96 << 20
)

// largeBuffers is how many connections have no bound: 16 where a buffer grows up to 6 MiB, and 3 with the 32 MiB of Linux 6.18. 0: the size is not known.
func largeBuffers() int {
	var least, first, most int
	text, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_rmem")
	if _, err := fmt.Sscan(string(text), &least, &first, &most); err != nil || most < 1 {
		return 0
	}
	return largeBytes / most
}

// Buffers are a few connections of which the kernel keeps as much as it likes, shared as budget.Places are. nil: all have large ones.
type Buffers struct{ large *budget.Places }

// NewBuffers makes large buffers for the connections of one server, or of one client: 2 at least.
func NewBuffers() *Buffers { return &Buffers{budget.NewPlaces(largeBuffers())} }

// Bound bounds a connection as BoundBuffer does, unless its tenant gets a large buffer, which leave gives back when the connection has ended. A second call
// of leave does nothing.
func (b *Buffers) Bound(tenant string, conn *net.TCPConn) (leave func()) {
	if b == nil {
		return func() {}
	}
	BoundBuffer(conn)
	place := b.large.Ask(tenant)
	select {
	case <-place.Granted():
		freeBuffer(conn)
	default:
		place.Leave()
	}
	return place.Leave
}

// BoundBuffer bounds what the kernel keeps of a connection until it is read, to 192 KiB.
func BoundBuffer(conn *net.TCPConn) { _ = conn.SetReadBuffer(receiveBytes) }
