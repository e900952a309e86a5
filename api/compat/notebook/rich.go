package notebook

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
)

// richBytes is the largest displayed value that stands in an answer, and richToolBytes that in the answer of a tool, which
// has to fit into one message, perhaps twice. A larger one is a link.
const (
	richBytes     = 32 << 20
	richToolBytes = 320 << 10
)

// Rich is one displayed value, as a kernel gives it: text and markup as it is, JSON as a value, all else in base64.
type Rich struct {
	Type string `json:"type"`
	Data any    `json:"data"`
	URL  string `json:"url,omitempty"` // in the place of data that is too large
}

// rich gives a displayed value, also one that was put aside for its size.
func (n *Service) rich(ctx context.Context, r wire.Rich) Rich {
	out := Rich{Type: r.Mime, Data: r.Data, URL: r.URL}
	if r.ArtifactID == "" {
		if markup(r.Mime) { // which the farm has in base64, as it does all that is not text/…
			if raw, err := base64.StdEncoding.DecodeString(r.Data); err == nil {
				out.Data = value(r.Mime, raw)
			}
		}
		return out
	}
	found, err := n.farm.Artifact(ctx, r.ArtifactID, n.largest)
	if err != nil || found.Content == nil {
		return out // the link has to do
	}
	out.URL = ""
	if strings.HasPrefix(r.Mime, "text/") || markup(r.Mime) {
		out.Data = value(r.Mime, found.Content)
	} else {
		out.Data = base64.StdEncoding.EncodeToString(found.Content)
	}
	return out
}

// markup tells types that are texts by another name.
func markup(mime string) bool {
	return isJSON(mime) || strings.HasSuffix(mime, "+xml") || mime == "application/javascript" || mime == "application/xml"
}

func isJSON(mime string) bool { return mime == "application/json" || strings.HasSuffix(mime, "+json") }

func value(mime string, raw []byte) any {
	if isJSON(mime) && json.Valid(raw) {
		return json.RawMessage(raw)
	}
	return string(raw)
}
