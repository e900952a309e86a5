package client_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestSandboxFilterByState(t *testing.T) {
	t.Parallel()
	var open []string
	for _, state := range farm.SandboxStates() {
		if !state.Final() {
			open = append(open, string(state))
		}
	}
	for want, filter := range map[string]client.SandboxFilter{
		"":                      {},
		"closed":                {State: "closed", Open: true},
		strings.Join(open, ","): {Open: true},
	} {
		var got string
		c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = r.URL.Query().Get("state")
			reply(t, w, http.StatusOK, wire.List[wire.Sandbox]{})
		}))
		for range c.Sandboxes(t.Context(), filter) {
			t.Error("a sandbox from an empty list")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v: %s", filter, diff)
		}
	}
}
