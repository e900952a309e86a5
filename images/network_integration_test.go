//go:build integration

package images_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sandfarm/sandfarm/deploy/base"
	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// The steps of a build reach the exit, and nothing of the host's network.
func TestNetworkOfABuild(t *testing.T) {
	t.Parallel()
	e, err := engine.New(engine.Config{Namespace: "sandfarm-test-" + farm.NewID("")})
	if err != nil {
		t.Fatal(err)
	}
	ref := "sandfarm/" + strings.ToLower(farm.NewID("test-"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		for _, err := range []error{e.RemoveImage(ctx, ref), e.RemoveAll(ctx, true), e.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	from, err := base.EnsureBase(t.Context(), e, base.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	host, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	_, port, _ := net.SplitHostPort(host.Addr().String())

	var mu sync.Mutex
	var asked []string
	network, err := images.Docker{Engine: e}.Network(t.Context(), from, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.String())
		mu.Unlock()
		_, _ = fmt.Fprint(w, "from the exit")
	}))
	if err != nil {
		t.Fatal(err)
	}
	program := `
import os, socket, urllib.request
def get(url, **proxies):
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies)).open(url, timeout=60).read()
assert get("http://` + network.Addr + `/pypi/simple/six/") == b"from the exit"
assert get("http://deb.debian.org/debian/", http="http://` + network.Addr + `") == b"from the exit"
assert os.listdir("/sys/class/net") == ["lo"], os.listdir("/sys/class/net")
for address in ("127.0.0.1", "` + address(t) + `"):
    try:
        socket.create_connection((address, ` + port + `), timeout=5)
    except OSError:
        continue
    raise SystemExit("reached the host at " + address)
`
	err = e.Build(t.Context(), engine.BuildSpec{
		Context: fstest.MapFS{
			"Dockerfile": {Data: []byte("FROM " + from + "\nCOPY try.py /\nRUN python3 /try.py\n")}, "try.py": {Data: []byte(program)},
		},
		Tags: []string{ref}, Network: network.Mode, NoCache: true,
	}, nil)
	if err != nil {
		t.Error(err)
	}
	if got := strings.Join(asked, " "); got != "/pypi/simple/six/ http://deb.debian.org/debian/" {
		t.Errorf("the exit was asked for %q", got)
	}
	id := strings.TrimPrefix(network.Mode, engine.BuildNetwork(""))
	if err := network.Close(); err != nil {
		t.Error(err)
	}
	if _, err := e.Inspect(t.Context(), id); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("after Close the container is there: %v", err)
	}
}

// address is an address of this machine that is not on loopback; loopback where it has none.
func address(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if p, ok := a.(*net.IPNet); ok && p.IP.To4() != nil && !p.IP.IsLoopback() {
			return p.IP.String()
		}
	}
	return "127.0.0.1"
}
