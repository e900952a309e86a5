package client_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// The methods on nodes call their routes; a node's id may contain anything.
func TestNodes(t *testing.T) {
	t.Parallel()
	var seen []string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = append(seen, r.Method+" "+r.URL.RequestURI()+" "+string(body))
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = w.Write([]byte(`{"state":"drained"}`))
	}))
	t.Cleanup(web.Close)
	c, err := client.New(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	idle := "close"
	for _, do := range []func() (wire.Drain, error){
		func() (wire.Drain, error) { return c.DrainNode(t.Context(), "AB:CD/1", wire.DrainRequest{Idle: &idle}) },
		func() (wire.Drain, error) { return c.NodeDrain(t.Context(), "n1") },
	} {
		if d, err := do(); err != nil || d.State != "drained" {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if err := c.EndNodeDrain(t.Context(), "n1"); err != nil {
		t.Error(err)
	}
	want := []string{`POST /v1/nodes/AB:CD%2F1/drain {"idle":"close"}`, "GET /v1/nodes/n1/drain ", "DELETE /v1/nodes/n1/drain "}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}
