package worker

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/embedded"
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

// The S3 service's HTTP server has two goroutines of its own that sleep and look now and then.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(withS3{m},
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}
