package transport

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// noWorkers is a Workers without workers.
type noWorkers struct{}

func (noWorkers) Stream(ctx context.Context) (*yamux.Stream, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestInstallersGetAnAnswerWithoutWorker(t *testing.T) {
	t.Parallel()
	life, end := context.WithCancel(t.Context())
	g, err := listen(life, EgressConfig{Addr: "127.0.0.1:0", Workers: noWorkers{}}, 50*time.Millisecond)
	testbed.Must(t, err)
	defer g.Close()
	defer end()
	res, err := http.Get("http://" + g.Addr() + "/pypi/simple/x/")
	testbed.Must(t, err)
	defer func() { _ = res.Body.Close() }()
	raw, _ := io.ReadAll(res.Body)
	testbed.Check(t, res.StatusCode == http.StatusServiceUnavailable && string(raw) == noWorker, "%s %q", res.Status, raw)
}

// Under gVisor two listeners with SO_REUSEADDR can have one port: a server of user code would get connections of installers.
func TestListenerSharesItsPortWithNoOther(t *testing.T) {
	t.Parallel()
	life, end := context.WithCancel(t.Context())
	g, err := listen(life, EgressConfig{Addr: "127.0.0.1:0", Workers: noWorkers{}}, time.Second)
	testbed.Must(t, err)
	defer g.Close()
	defer end()
	raw, err := g.listener.(*net.TCPListener).SyscallConn()
	testbed.Must(t, err)
	testbed.Must(t, raw.Control(func(fd uintptr) {
		got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR)
		testbed.Check(t, err == nil && got == 0, "SO_REUSEADDR is %d, %v", got, err)
	}))
}

// backlog is a listener with connections that wait.
type backlog struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (b backlog) Accept() (net.Conn, error) {
	select {
	case conn := <-b.conns:
		return conn, nil
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

func (b backlog) Close() error {
	close(b.closed)
	return nil
}

func (backlog) Addr() net.Addr { return nil }

// countingWorkers is a Workers that refuses a stream when it is told to.
type countingWorkers struct {
	asked  atomic.Int64
	refuse chan struct{}
}

func (w *countingWorkers) Stream(ctx context.Context) (*yamux.Stream, error) {
	w.asked.Add(1)
	select {
	case <-w.refuse:
	case <-ctx.Done():
	}
	return nil, net.ErrClosed
}

func TestConnectionsOverTheLimitWait(t *testing.T) {
	t.Parallel()
	for proxy, limit := range map[bool]int{false: agent.MaxIndexStreams, true: agent.MaxProxyStreams} {
		synctest.Test(t, func(t *testing.T) {
			waiting := backlog{conns: make(chan net.Conn, 2*limit), closed: make(chan struct{})}
			for range 2 * limit {
				client, conn := net.Pipe()
				_ = client.Close() // so that a refusal is not waited for
				waiting.conns <- conn
			}
			life, end := context.WithCancel(t.Context())
			workers := &countingWorkers{refuse: make(chan struct{})}
			g := serve(life, waiting, EgressConfig{Workers: workers, Proxy: proxy}, time.Hour)
			defer g.Close()
			defer end()
			for ended := range 3 {
				synctest.Wait()
				if got := int(workers.asked.Load()); got != limit+ended {
					t.Errorf("proxy %v: %d connections were let in after %d had ended, want %d", proxy, got, ended, limit+ended)
				}
				workers.refuse <- struct{}{}
			}
		})
	}
}

// Nothing reaches a program before the check: while memory is short, an installer gets no more.
func TestEachPieceIsCheckedBeforeItIsPassedOn(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	checked := 0
	to := pieces{to: &got, before: func() {
		testbed.Diff(t, fmt.Sprintf("check %d: bytes were passed on", checked), checked*bufferBytes, got.Len())
		checked++
	}}
	idle := time.NewTimer(time.Hour)
	defer idle.Stop()
	if !copyUntilEnd(to, bytes.NewReader(make([]byte, 10*bufferBytes)), make([]byte, bufferBytes), idle) || checked != 10 || got.Len() != 10*bufferBytes {
		t.Errorf("%d checks of %d bytes, want 10 of %d", checked, got.Len(), 10*bufferBytes)
	}
}
