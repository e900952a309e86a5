package transport_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// pair returns both ends of a connection whose streams keep nothing.
func pair(t *testing.T) (a, b *transport.Conn) {
	t.Helper()
	fromA, toB := io.Pipe()
	fromB, toA := io.Pipe()
	a = transport.NewDuplex(transport.Streams{From: fromB, To: toB, Ended: func() { _ = toB.Close() }, Abort: func() { _ = fromB.Close() }})
	b = transport.NewDuplex(transport.Streams{From: fromA, To: toA, Ended: func() { _ = toA.Close() }, Abort: func() { _ = fromA.Close() }})
	t.Cleanup(func() {
		_, _ = a.Close(), b.Close()
		<-a.Over()
		<-b.Over()
	})
	return a, b
}

// data are bytes that do not repeat soon.
func data(size int) []byte {
	out := make([]byte, 0, size+sha256.Size)
	for sum := sha256.Sum256(nil); len(out) < size; sum = sha256.Sum256(sum[:]) {
		out = append(out, sum[:]...)
	}
	return out[:size]
}

func TestBytesPassBothWaysAtOnce(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	sent := data(5 << 20)
	var all sync.WaitGroup
	for _, c := range []*transport.Conn{a, b} {
		all.Go(func() {
			n, err := c.Write(sent)
			testbed.Check(t, n == len(sent) && err == nil, "wrote %d, %v", n, err)
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			got, err := io.ReadAll(c)
			testbed.Check(t, err == nil && bytes.Equal(got, sent), "read %d bytes, %v", len(got), err)
		})
	}
	all.Wait()
	<-a.Over()
	<-b.Over()
}

// One direction is ended, and the other one goes on for as long as it likes.
func TestHalfIsClosed(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	testbed.Must(t, a.CloseWrite())
	got, err := io.ReadAll(b)
	testbed.Check(t, err == nil && len(got) == 0, "%q, %v", got, err)
	_, err = a.Write([]byte("x"))
	testbed.Check(t, err != nil, "a byte after the end was taken")
	sent := data(3 * transport.Window)
	go func() {
		_, _ = b.Write(sent)
		_ = b.CloseWrite()
	}()
	got, err = io.ReadAll(a)
	testbed.Check(t, err == nil && bytes.Equal(got, sent), "read %d bytes, %v", len(got), err)
}

// A sender is held back after Window bytes, not one earlier or later, and goes on when they are read.
func TestAReceiverThatDoesNotRead(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	full, all := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(all)
		_, _ = a.Write(data(transport.Window))
		close(full)
		_, _ = a.Write([]byte("y"))
	}()
	<-full
	_, err := b.Write([]byte("the other direction is free"))
	testbed.Must(t, err)
	buf := make([]byte, transport.Window)
	n, err := io.ReadAtLeast(a, buf, 20)
	if err != nil || !bytes.HasPrefix(buf[:n], []byte("the other direct")) {
		t.Errorf("%q, %v", buf[:n], err)
	}
	select {
	case <-all:
		t.Error("more than the window was taken without a reader")
	default:
	}
	_, err = io.ReadFull(b, buf)
	testbed.Must(t, err)
	<-all
	if n, err := b.Read(buf); n != 1 || buf[0] != 'y' || err != nil {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

func TestAResetIsNotAnEnd(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	_, err := a.Write([]byte("half"))
	testbed.Must(t, err)
	a.Reset()
	got, err := io.ReadAll(b)
	testbed.Check(t, errors.Is(err, transport.ErrReset) && string(got) == "half", "%q, %v", got, err)
	_, err = b.Write([]byte("x"))
	testbed.Check(t, err != nil, "a write after the reset was taken")
	_, err = a.Read(make([]byte, 1))
	testbed.Check(t, errors.Is(err, transport.ErrReset), "own end: %v", err)
}

// What was written before Close arrives, and the other end cannot write any more, even if it waited for a reader.
func TestClose(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	held := make(chan error, 1)
	go func() {
		_, err := b.Write(data(2 * transport.Window))
		held <- err
	}()
	_, err := io.ReadFull(a, make([]byte, 1))
	testbed.Must(t, err)
	_, err = a.Write([]byte("bye"))
	testbed.Must(t, err)
	testbed.Must(t, a.Close())
	testbed.Must(t, a.Close())
	_, err = a.Read(make([]byte, 1))
	testbed.Check(t, errors.Is(err, net.ErrClosed), "read after close: %v", err)
	got, err := io.ReadAll(b)
	testbed.Check(t, err == nil && string(got) == "bye", "%q, %v", got, err)
	err = <-held
	testbed.Check(t, err != nil, "everything was written, and nobody read it")
}

func TestAStreamThatBreaks(t *testing.T) {
	t.Parallel()
	for name, stream := range map[string]string{
		"Nothing": "", "Half a header": "\x01\x00", "Half of the data": "\x01\x00\x00\x05abc",
	} {
		c := transport.NewDuplex(transport.Streams{From: bytes.NewReader([]byte(stream)), To: io.Discard})
		<-c.Over()
		_, err := io.ReadAll(c)
		testbed.Check(t, err != nil, "%s: it looks complete", name)
	}
}

func TestEndsThatAreNotCorrect(t *testing.T) {
	t.Parallel()
	full := bytes.Repeat(append([]byte("\x01\x00\x80\x00"), data(32<<10)...), transport.Window/(32<<10))
	for name, c := range map[string]struct {
		stream string
		bad    bool
	}{
		"All that is allowed":    {string(full) + "\x03\x00\x00\x00", false},
		"One byte more":          {string(full) + "\x01\x00\x00\x01x\x03\x00\x00\x00", true},
		"A longer frame":         {"\x01\x00\x80\x01" + string(data(32<<10+1)) + "\x03\x00\x00\x00", true},
		"No data":                {"\x01\x00\x00\x00\x03\x00\x00\x00", true},
		"Unknown kind":           {"\x05\x00\x00\x00\x03\x00\x00\x00", true},
		"Kind 0":                 {"\x00\x00\x00\x00\x03\x00\x00\x00", true},
		"Credit for nothing":     {"\x02\x00\x00\x01\x03\x00\x00\x00", true},
		"Credit of nothing":      {"\x02\x00\x00\x00\x03\x00\x00\x00", true},
		"End with a length":      {"\x03\x00\x00\x01", true},
		"Data after the end":     {"\x03\x00\x00\x00\x01\x00\x00\x01x", false}, // the end was correct, and what follows is not read
		"A credit after the end": {"\x03\x00\x00\x00\x02\x00\x00\x01", false},
	} {
		conn := transport.NewDuplex(transport.Streams{From: bytes.NewReader([]byte(c.stream)), To: io.Discard})
		<-conn.Over()
		got, err := io.ReadAll(conn)
		testbed.Check(t, (err != nil) == c.bad && len(got) <= transport.Window, "%s: %d bytes, %v", name, len(got), err)
		_, err = conn.Write([]byte("x"))
		testbed.Check(t, err != nil, "%s: a write to a stream that has ended", name)
	}
}

func TestDeadlinesAreRefused(t *testing.T) {
	t.Parallel()
	a, _ := pair(t)
	for _, err := range []error{a.SetDeadline(time.Now()), a.SetReadDeadline(time.Now()), a.SetWriteDeadline(time.Now())} {
		if !errors.Is(err, os.ErrNoDeadline) {
			t.Error(err)
		}
	}
	testbed.Check(t, a.LocalAddr().String() != "" && a.RemoteAddr().Network() != "", "no address")
}

// FuzzFrames: whatever the other end sends, an end keeps at most Window bytes of it and comes to an end itself.
func FuzzFrames(f *testing.F) {
	for _, seed := range []string{"", "\x01\x00\x00\x03abc\x03\x00\x00\x00", "\x02\x00\x00\x01", "\x04\x00\x00\x00", "\x01\x00\x80\x01", "\x03\x00\x00\x00\x03\x00\x00\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := transport.NewDuplex(transport.Streams{From: bytes.NewReader(stream), To: io.Discard})
		<-c.Over()
		got, err := io.ReadAll(c)
		testbed.Check(t, len(got) <= transport.Window && len(got) <= len(stream), "%d bytes of %d", len(got), len(stream))
		testbed.Check(t, err != nil || bytes.Contains(stream, []byte{3, 0, 0, 0}), "an end that was not sent")
	})
}

// What one side sends and the other does not read stays in the kernel, which lets a connection that was read fast have some MiB.
func TestTheKernelKeepsLittleOfAPort(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer func() { _ = listener.Close() }()
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	server, err := transport.DialPort(t.Context(), port, func(ctx context.Context, address string) (*net.TCPConn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return conn.(*net.TCPConn), nil
	})
	testbed.Must(t, err)
	defer func() { _ = server.Close() }()
	buffer := testbed.ReceiveBuffer(t, server.(syscall.Conn))
	testbed.Diff(t, "bytes that the kernel may keep", 2*96<<10, buffer)
}
