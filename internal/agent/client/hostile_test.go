package client_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent/client"
)

// Data on a stream that the worker did not request would stay in the worker's memory.
func TestAStreamThatTheAgentOpensEndsTheSession(t *testing.T) {
	t.Parallel()
	c, session := hostileAgent(t, client.Options{})
	if _, err := session.Open(); err != nil && !errors.Is(err, yamux.ErrSessionShutdown) { // the session may end before Open returns
		t.Fatal(err)
	}
	awaitEnd(t, c, "a stream that it did not request")
}

type discard struct{}

func (discard) Print(...any)          {}
func (discard) Printf(string, ...any) {}
func (discard) Println(...any)        {}

func TestHeadersOfAnAnswerAreBounded(t *testing.T) {
	t.Parallel()
	c := against(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Entry", strings.Repeat("x", 1<<20))
	})
	if _, err := c.Info(t.Context()); err == nil {
		t.Fatal("a MiB of headers was accepted")
	}
}
