// Package transport passes bytes between a sandbox and its worker, at both ends: a connection made of a request and its answer (Conn), a server on
// the sandbox's loopback (DialPort, JoinPort), and the way out of a sandbox without a network (Egress). Each direction ends by itself, what was
// broken off does not look complete at the other end, and a receiver that does not read holds its sender back.
package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// closeTimeout is how long the other end may take to receive what was written before Close.
const closeTimeout = 10 * time.Second

// Streams are what a Conn is made of.
type Streams struct {
	From io.Reader
	To   io.Writer
	// Flush sends what was written to To; nil: a write sends.
	Flush func() error
	// Ended is called once, when nothing more is written to To; nil: not reported.
	Ended func()
	// Abort ends both streams at once, so that reads and writes return; nil: they end by themselves.
	Abort func()
}

// Conn is one end of a connection that is made of a request and its answer: bytes pass both ways at the same time, each way can be ended by itself,
// and a receiver that does not read holds its sender back after Window bytes, whatever the buffers between the two are. Both ends use the same
// frames: four bytes, the kind and the length or amount, and for data the data. It is a net.Conn without deadlines: they are refused with os.ErrNoDeadline. Read and Write may be called at
// the same time.
type Conn struct {
	s    Streams
	over chan struct{} // closed when From has ended

	mu      sync.Mutex
	changed sync.Cond
	in      buffer
	read    int   // bytes that were read and not credited
	inEnd   error // what Read returns when in is empty; nil: more may come
	inOver  bool  // the other end has ended its direction or broken off
	credit  int   // bytes that may be written
	ended   bool  // no data are written any more
	sent    bool  // our end or reset is sent
	closed  bool

	writing sync.Mutex // one frame at a time
	last    sync.Once
}

var _ net.Conn = (*Conn)(nil)

// NewDuplex makes an end of a connection of two streams. A goroutine reads From until it ends: see Over.
func NewDuplex(s Streams) *Conn {
	c := &Conn{s: s, over: make(chan struct{}), credit: Window}
	c.changed.L = &c.mu
	go c.receive()
	return c
}

// Over is closed when From has ended: the other end is gone, or both directions have ended.
func (c *Conn) Over() <-chan struct{} { return c.over }

// Gone waits until From has ended: see Over.
func (c *Conn) Gone() { <-c.over }

// Abort is Reset and Close.
func (c *Conn) Abort() {
	c.Reset()
	_ = c.Close()
}

// receive reads frames until the stream ends.
func (c *Conn) receive() {
	defer close(c.over)
	err := c.frames()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inEnd == nil { // neither an end nor a reset came
		c.inEnd = fmt.Errorf("read from the stream: %w", err)
	}
	c.ended = true // the peer no longer reads
	c.changed.Broadcast()
	c.finish()
}

func (c *Conn) frames() error {
	var header [headerBytes]byte
	for {
		kind, number, err := readHeader(c.s.From, &header)
		if err != nil {
			return err
		}
		if kind == kindData {
			err = c.keep(number)
		} else {
			err = c.note(kind, number)
		}
		if err != nil {
			return err
		}
	}
}

// note takes a frame without data.
func (c *Conn) note(kind byte, number int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.changed.Broadcast()
	switch {
	case kind == kindCredit && c.credit+number > Window:
		return fmt.Errorf("%w: a credit for more than was sent", errProtocol)
	case kind == kindCredit:
		c.credit += number
		return nil
	case c.inOver:
		return fmt.Errorf("%w: a second end", errProtocol)
	}
	c.inOver = true
	if kind == kindReset {
		c.inEnd, c.ended = ErrReset, true
	} else if c.inEnd == nil {
		c.inEnd = io.EOF
	}
	if kind == kindReset || c.sent {
		c.finish()
	}
	return nil
}

// keep receives the data of a frame.
func (c *Conn) keep(length int) error {
	for length > 0 {
		c.mu.Lock()
		switch {
		case c.inOver:
			c.mu.Unlock()
			return fmt.Errorf("%w: data after the end", errProtocol)
		case c.in.kept+c.read+length > Window:
			c.mu.Unlock()
			return fmt.Errorf("%w: more data than were asked for", errProtocol)
		case c.closed, c.inEnd != nil: // they are discarded
			c.mu.Unlock()
			_, err := io.CopyN(io.Discard, c.s.From, int64(length))
			return err
		}
		space := c.in.space(length)
		c.mu.Unlock()
		n, err := c.s.From.Read(space)
		c.mu.Lock()
		c.in.filled(n)
		c.changed.Broadcast()
		c.mu.Unlock()
		if length -= n; err != nil && length > 0 {
			return err
		}
	}
	return nil
}

// Read reads what came. io.EOF: the other end has ended its direction; ErrReset: it broke off.
func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	for c.in.kept == 0 && c.inEnd == nil && !c.closed && len(p) > 0 {
		c.changed.Wait()
	}
	if c.closed {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	n := c.in.take(p)
	if n == 0 && len(p) > 0 {
		err := c.inEnd
		c.mu.Unlock()
		return 0, err
	}
	c.read += n
	credit := 0
	if c.read >= creditAfter && c.inEnd == nil {
		credit = c.read
	}
	c.mu.Unlock()
	if credit > 0 {
		c.writing.Lock() // the frames of two credits must not be counted twice
		defer c.writing.Unlock()
		c.mu.Lock()
		credit = c.read
		c.read = 0
		over := c.inEnd != nil
		c.mu.Unlock()
		if credit > 0 && !over {
			_ = c.frame(kindCredit, credit, nil) // if it does not arrive, the stream is broken, and the next read says so
		}
	}
	return n, nil
}

// Write writes p, as fast as the other end reads.
func (c *Conn) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		c.mu.Lock()
		for c.credit == 0 && !c.ended && !c.closed {
			c.changed.Wait()
		}
		if c.ended || c.closed {
			err := c.inEnd
			c.mu.Unlock()
			if err == nil || errors.Is(err, io.EOF) {
				err = net.ErrClosed
			}
			return written, err
		}
		n := min(len(p)-written, c.credit, maxData)
		c.credit -= n
		c.mu.Unlock()
		c.writing.Lock()
		err := c.frame(kindData, n, p[written:written+n])
		c.writing.Unlock()
		if err != nil {
			return written, fmt.Errorf("write to the stream: %w", err)
		}
		written += n
	}
	return written, nil
}

// frames of data are put together here, so that each is one write.
var frames = sync.Pool{New: func() any { return new([headerBytes + maxData]byte) }}

// frame sends a frame. The caller holds writing.
func (c *Conn) frame(kind byte, number int, data []byte) error {
	buf := frames.Get().(*[headerBytes + maxData]byte) //nolint:errcheck // the pool holds nothing else
	defer frames.Put(buf)
	putHeader(buf[:headerBytes], kind, number)
	if _, err := c.s.To.Write(buf[:headerBytes+copy(buf[headerBytes:], data)]); err != nil {
		return err
	}
	if c.s.Flush == nil {
		return nil
	}
	return c.s.Flush()
}

// CloseWrite ends our direction: the other end reads io.EOF after what was written.
func (c *Conn) CloseWrite() error { return c.end(kindEnd) }

// Reset breaks the connection off: the other end reads ErrReset.
func (c *Conn) Reset() { _ = c.end(kindReset) }

func (c *Conn) end(kind byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return nil
	}
	c.ended = true
	if kind == kindReset && c.inEnd == nil {
		c.inEnd = ErrReset
	}
	c.changed.Broadcast()
	c.mu.Unlock()
	err := c.frame(kind, 0, nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent = true; c.inOver {
		c.finish()
	}
	return err
}

// finish says that nothing more is written.
func (c *Conn) finish() {
	c.last.Do(func() {
		if c.s.Ended != nil {
			c.s.Ended()
		}
	})
}

// Close ends the connection. What was written still arrives; what was not read is dropped. It does not wait.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.changed.Broadcast()
	c.mu.Unlock()
	go func() { // the other end may be slow
		if c.s.Abort != nil {
			timer := time.AfterFunc(closeTimeout, c.s.Abort)
			defer timer.Stop()
		}
		_ = c.end(kindEnd)
		c.finish()
		<-c.over
		if c.s.Abort != nil {
			c.s.Abort()
		}
	}()
	return nil
}

// LocalAddr names no address.
func (c *Conn) LocalAddr() net.Addr { return address{} }

// RemoteAddr names no address.
func (c *Conn) RemoteAddr() net.Addr { return address{} }

// SetDeadline returns os.ErrNoDeadline.
func (c *Conn) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline returns os.ErrNoDeadline.
func (c *Conn) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline returns os.ErrNoDeadline.
func (c *Conn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

type address struct{}

// Network implements net.Addr.
func (address) Network() string { return "sandbox" }

// String implements net.Addr.
func (address) String() string { return "sandbox" }

const (
	// Window is how many bytes may be on their way in one direction. It is the most that an end keeps of what it has not read.
	Window = 128 << 10
	// maxData is the most data of one frame.
	maxData = 32 << 10
	// headerBytes is the length of a frame's header.
	headerBytes = 4
	// creditAfter is how much is read before credit is returned to the sender.
	creditAfter = Window / 4
)

// The kinds of frames.
const (
	kindData   = 1 // with its length
	kindCredit = 2 // that many bytes were read
	kindEnd    = 3 // no data follow
	kindReset  = 4 // the data are not complete, and none follow
)

// ErrReset says that the other end broke the connection off.
var ErrReset = errors.New("the connection was reset by the other end")

// errProtocol is wrapped by what a correct end does not send.
var errProtocol = errors.New("the other end of the stream does not follow the protocol")

// putHeader writes the header of a frame. number is at most Window.
func putHeader(to []byte, kind byte, number int) {
	binary.BigEndian.PutUint32(to, uint32(kind)<<24|uint32(number)) //nolint:gosec // it fits in 24 bits
}

// readHeader reads the header of a frame. io.EOF: the stream has ended between two frames.
func readHeader(from io.Reader, into *[headerBytes]byte) (kind byte, number int, err error) {
	if _, err := io.ReadFull(from, into[:]); err != nil {
		return 0, 0, err
	}
	word := binary.BigEndian.Uint32(into[:])
	kind, number = byte(word>>24), int(word&0xffffff)
	switch {
	case kind == kindData && number > 0 && number <= maxData, kind == kindCredit && number > 0 && number <= Window,
		(kind == kindEnd || kind == kindReset) && number == 0:
		return kind, number, nil
	default:
		return 0, 0, fmt.Errorf("%w: a frame of kind %d with %d", errProtocol, kind, number)
	}
}

// firstBuffer is the size of the first buffer of an end, which most never outgrow.
const firstBuffer = 8 << 10

// buffer is a ring of at most Window bytes. One goroutine fills it and another one takes from it, and whoever calls its methods holds the lock
// of the Conn; what space returns is filled without.
type buffer struct {
	ring  []byte
	start int // of what is kept
	kept  int
}

// space returns a part of the ring to fill, of 1 to most bytes. kept plus most is at most Window.
func (b *buffer) space(limit int) []byte {
	if b.kept == len(b.ring) {
		b.grow(b.kept + limit)
	}
	if b.kept == 0 {
		b.start = 0
	}
	from := (b.start + b.kept) % len(b.ring)
	to := len(b.ring)
	if from < b.start {
		to = b.start
	}
	return b.ring[from:min(to, from+limit)]
}

// filled keeps the first n bytes of what space returned.
func (b *buffer) filled(n int) { b.kept += n }

// take moves bytes to p.
func (b *buffer) take(p []byte) int {
	n := 0
	for n < len(p) && b.kept > 0 {
		c := copy(p[n:], b.ring[b.start:min(len(b.ring), b.start+b.kept)])
		b.start, b.kept, n = (b.start+c)%len(b.ring), b.kept-c, n+c
	}
	return n
}

// grow makes room for size bytes.
func (b *buffer) grow(size int) {
	next := max(firstBuffer, len(b.ring))
	for next < size {
		next *= 2
	}
	ring := make([]byte, min(next, Window))
	kept := b.kept
	b.take(ring[:kept])
	b.ring, b.start, b.kept = ring, 0, kept
}
