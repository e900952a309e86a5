package notebook

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
)

// richBytes is the largest displayed value that an answer of a route holds. richToolBytes is the same for a tool, whose answer must
// fit into one message, where it may stand twice. A larger value is a link.
const (
	richBytes     = 32 << 20
	richToolBytes = 320 << 10
)

// Rich is one MIME type of one displayed value, as a kernel sends it: text and markup as it is, JSON as a value, anything else in
// base64.
type Rich struct {
	Display int    `json:"display,omitempty"` // number of the displayed value; entries of one value share it, those of the first have none
	Type    string `json:"type"`
	Data    any    `json:"data"`
	URL     string `json:"url,omitempty"` // in the place of data that is too large
}

// rich converts an entry of a displayed value. One that the farm moved to the object store is read back if it is small enough.
func (n *Service) rich(ctx context.Context, r wire.Rich) Rich {
	out := Rich{Display: r.Display, Type: r.Mime, Data: r.Data, URL: r.URL}
	if r.ArtifactID == "" {
		if text, ok := r.Text(); ok {
			out.Data = textOrJSON(r.Mime, []byte(text))
		}
		return out
	}
	found, err := n.farm.Artifact(ctx, r.ArtifactID, n.largest)
	if err != nil || found.Content == nil {
		return out // the caller has the link
	}
	out.URL = ""
	if strings.HasPrefix(r.Mime, "text/") || wire.IsMarkup(r.Mime) {
		out.Data = textOrJSON(r.Mime, found.Content)
	} else {
		out.Data = base64.StdEncoding.EncodeToString(found.Content)
	}
	return out
}

func textOrJSON(mime string, raw []byte) any {
	if wire.IsJSON(mime) && json.Valid(raw) {
		return json.RawMessage(raw)
	}
	return string(raw)
}
