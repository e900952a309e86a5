package workertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/embedded"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
)

// s3 is the object store of all tests: a process can run one.
var s3 *embedded.S3

type withS3 struct{ *testing.M }

// Run runs the tests beside an object store, and stops it before goroutines are counted.
func (m withS3) Run() int {
	dir, err := os.MkdirTemp("", "worker-s3-")
	if err == nil {
		s3, err = embedded.StartS3(context.Background(), embedded.S3Config{Dir: dir, Listen: "127.0.0.1:0", AccessKey: "access", SecretKey: "secret-key", Logger: slog.New(slog.DiscardHandler)})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start S3:", err)
		return 1
	}
	code := m.M.Run()
	if err := s3.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "stop S3:", err)
		code = 1
	}
	_ = os.RemoveAll(dir)
	return code
}

// Main runs a package's tests beside an object store, and checks that no goroutine is left. The S3 service's HTTP server has two
// goroutines of its own that sleep and wake now and then.
func Main(m *testing.M) {
	goleak.VerifyTestMain(withS3{m},
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// ErrTest is an error that a test makes.
var ErrTest = errors.New("made to fail")

// Task is the task of a job, as queues deliver it.
func Task(ref farm.Ref) queue.Task { return queue.Task{Type: queue.TypeJob, Ref: ref} }

// In returns a clock that is ahead by d.
func In(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(d) } }

// Hostile returns a client of a fake agent that answers with a handler.
func Hostile(t *testing.T, h http.Handler) *client.Client {
	t.Helper()
	ours, theirs := net.Pipe()
	session, err := yamux.Server(theirs, nil)
	Must(t, err)
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(session)
	}()
	c, err := client.New(ours, client.Options{})
	Must(t, err)
	t.Cleanup(func() {
		_ = c.Close()
		_ = server.Close()
		_ = session.Close()
		<-served
	})
	return c
}

// Must ends the test on an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
