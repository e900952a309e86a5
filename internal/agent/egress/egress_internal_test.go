package egress

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"
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
	g, err := listen(life, Config{Addr: "127.0.0.1:0", Workers: noWorkers{}}, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	defer end()
	res, err := http.Get("http://" + g.Addr() + "/pypi/simple/x/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if raw, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusServiceUnavailable || string(raw) != noWorker {
		t.Errorf("%s %q", res.Status, raw)
	}
}

// Under gVisor two listeners with SO_REUSEADDR can have one port: a server of user code would get connections of installers.
func TestListenerSharesItsPortWithNoOther(t *testing.T) {
	t.Parallel()
	life, end := context.WithCancel(t.Context())
	g, err := listen(life, Config{Addr: "127.0.0.1:0", Workers: noWorkers{}}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	defer end()
	raw, err := g.listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		if got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR); err != nil || got != 0 {
			t.Errorf("SO_REUSEADDR is %d, %v", got, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
