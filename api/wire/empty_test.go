package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
)

func TestDisplayedValueHasDataOrALink(t *testing.T) {
	t.Parallel()
	for want, value := range map[string]any{
		`{"mime":"text/plain","data":""}`:                              wire.Rich{Mime: "text/plain"},
		`{"mime":"text/plain","data":"42"}`:                            wire.Rich{Mime: "text/plain", Data: "42"},
		`{"mime":"image/png","artifact_id":"art_1","url":"http://x/"}`: wire.Rich{Mime: "image/png", ArtifactID: "art_1", URL: "http://x/"},
		`{"mime":"text/html","data":""}`:                               wire.DisplayData{Mime: "text/html"},
		`{"mime":"text/html","artifact_id":"art_2","url":"http://x/"}`: wire.DisplayData{Mime: "text/html", ArtifactID: "art_2", URL: "http://x/"},
	} {
		if got, err := json.Marshal(value); err != nil || string(got) != want {
			t.Errorf("%+v is written as %s, %v; want %s", value, got, err, want)
		}
	}
}
