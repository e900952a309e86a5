package egress

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
)

// nobody is what is connected when no worker is.
type nobody struct{}

func (nobody) Stream(ctx context.Context) (*yamux.Stream, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestWithoutAWorkerInstallersGetAnAnswer(t *testing.T) {
	t.Parallel()
	life, end := context.WithCancel(t.Context())
	g, err := listen(life, "127.0.0.1:0", nobody{}, 50*time.Millisecond)
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
