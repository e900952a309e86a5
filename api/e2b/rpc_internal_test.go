package e2b

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/e2b/envd"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

type received struct{ connect.StreamingHandlerConn }

func (received) Receive(any) error  { return nil }
func (received) Spec() connect.Spec { return connect.Spec{} }

// A large message is decoded on a core of its tenant's, which is given back before the call begins: it may last.
func TestLargeMessagesHaveACoreUntilTheirCallBegins(t *testing.T) {
	t.Parallel()
	memory := budget.New(0)
	for size, want := range map[int]bool{budget.SmallBytes - 64: false, budget.SmallBytes - 63: true} { // its value counts as 64 bytes
		c, _ := gin.CreateTestContext(httptest.NewRecorder())
		c.Request = httptest.NewRequestWithContext(testbed.WithoutCore(t, memory, "acme"), http.MethodPost, envd.ProcessListProcedure, strings.NewReader(strings.Repeat("?", size)))
		c.Request.Header.Set("Content-Type", "application/json")
		if err := New(Deps{MaxBody: 1 << 20}).RPC("")(c, Box{}); errors.Is(err, context.Canceled) != want {
			t.Errorf("a message of %d bytes, without a core: %v", size, err)
		}
	}
	for size, want := range map[int]bool{budget.SmallBytes - 1: false, budget.SmallBytes: false, budget.SmallBytes + 1: true} {
		_, err := io.ReadAll(onCore{io.NopCloser(strings.NewReader(strings.Repeat("?", size))), testbed.WithoutCore(t, memory, "acme")})
		testbed.Check(t, errors.Is(err, context.Canceled) == want, "a stream of %d bytes, without a core: %v", size, err)
	}

	memory = budget.New(0)
	takes := func() bool { return testbed.FreeCores(t, memory, "acme") > 0 }
	decoding := func() context.Context { // the request with the last core
		on := testbed.Abandoned(t, memory, "acme")
		testbed.Must(t, budget.TakeCore(on, budget.SmallBytes+1))
		testbed.TakeCores(t, memory, "acme")
		return on
	}
	on := decoding()
	_, err := failures{}.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
		if !takes() {
			t.Error("a call has the core of its message")
		}
		return nil, nil
	})(on, connect.NewRequest(&envd.ListRequest{}))
	if err != nil {
		t.Error(err)
	}
	on = decoding()
	err = failures{}.WrapStreamingHandler(func(_ context.Context, conn connect.StreamingHandlerConn) error {
		if takes() {
			t.Error("the message of a stream is decoded without a core")
		}
		if err := conn.Receive(nil); err != nil || !takes() {
			t.Errorf("a stream has the core of its message, %v", err)
		}
		return nil
	})(on, received{})
	if err != nil {
		t.Error(err)
	}
}

func TestEndSaysWhy(t *testing.T) {
	t.Parallel()
	killed, failed, ok := 137, 2, 0
	for want, end := range map[string]farm.ProcessEnd{
		"limit of 64 MiB.": {ExitCode: &killed, OutOfMemory: true, Reason: "limit of 64 MiB."},
		"exit status 2":    {ExitCode: &failed},
		"":                 {ExitCode: &ok},
	} {
		if got := endOf(&end); got.GetError() != want || int(got.GetExitCode()) != *end.ExitCode {
			t.Errorf("%v, want %q", got, want)
		}
	}
}

// What an entry takes in memory counts its text as often as it is there.
func TestWeightOfEntries(t *testing.T) {
	t.Parallel()
	target := strings.Repeat("t", 999)
	entry := &envd.EntryInfo{Path: "/a", SymlinkTarget: &target, Metadata: map[string]string{"key": "value"}}
	if got, want := weightOf(entry), int64(entryBytes+1001*budget.BodyWeight+8*2); got != want || weightOf(nil) != 0 {
		t.Errorf("an entry has %d bytes, want %d", got, want)
	}
}
