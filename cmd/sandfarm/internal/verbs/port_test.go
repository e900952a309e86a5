package verbs_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
)

func TestPortLink(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["POST /v1/sandboxes/sbx_1/port-links"] = f.gives(http.StatusOK, wire.PortLink{URL: "http://farm/p/x/"})
	for _, flags := range [][]string{nil, {"--path-style", "--expires", "1m"}} {
		if got := f.sandfarm(t.Context(), "", append([]string{"sandbox", "port-link", "sbx_1", "80"}, flags...)...); got != (outputs{0, "http://farm/p/x/\n", ""}) {
			t.Errorf("%+v", got)
		}
	}
	want := []string{`POST /v1/sandboxes/sbx_1/port-links {"port":80,"expires_seconds":3600}`, `POST /v1/sandboxes/sbx_1/port-links {"port":80,"expires_seconds":60,"path_style":true}`}
	if diff := cmp.Diff(want, f.asked()); diff != "" {
		t.Error(diff)
	}
}
