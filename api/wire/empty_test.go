package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
)

func TestDisplayedValueHasDataOrALink(t *testing.T) {
	t.Parallel()
	for want, value := range map[string]any{
		`{"display":0,"mime":"text/plain","data":""}`:                              wire.Rich{Mime: "text/plain"},
		`{"display":0,"mime":"text/plain","data":"42"}`:                            wire.Rich{Mime: "text/plain", Data: "42"},
		`{"display":0,"mime":"image/png","artifact_id":"art_1","url":"http://x/"}`: wire.Rich{Mime: "image/png", ArtifactID: "art_1", URL: "http://x/"},
		`{"display":0,"mime":"text/html","data":""}`:                               wire.DisplayData{Mime: "text/html"},
		`{"display":2,"mime":"text/html","data":""}`:                               wire.DisplayData{Display: 2, Mime: "text/html"},
		`{"display":1,"mime":"text/html","data":"a"}`:                              wire.Rich{Display: 1, Mime: "text/html", Data: "a"},
		`{"display":0,"mime":"text/html","artifact_id":"art_2","url":"http://x/"}`: wire.DisplayData{Mime: "text/html", ArtifactID: "art_2", URL: "http://x/"},
		`{"display":0,"mime":"a/b","display_id":"n","metadata":{"a":1},"data":""}`: wire.Rich{Mime: "a/b", DisplayID: "n", Metadata: []byte(`{"a":1}`)},
		`{"display":0,"mime":"a/b","display_id":"n","update":true,"data":""}`:      wire.DisplayData{Mime: "a/b", DisplayID: "n", Update: true},
		`{"display":0,"mime":"a/b","data":"x","display_id":"n","update":true}`:     wire.DisplayData{Mime: "a/b", Data: "x", DisplayID: "n", Update: true},
		`{"wait":false}`: wire.ClearData{},
	} {
		if got, err := json.Marshal(value); err != nil || string(got) != want {
			t.Errorf("%+v is written as %s, %v; want %s", value, got, err, want)
		}
	}
}
