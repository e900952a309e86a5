package jupyter

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
)

// output turns the events of one job into messages.
type output struct {
	session *session
	work    *work
	value   *value // that is being collected
}

// value is one displayed value with all its types.
type value struct {
	number   int
	data     map[string]any
	metadata json.RawMessage
	id       string
	update   bool
	result   bool
	large    []wire.DisplayData // types that are artifacts
}

// add sends what an event says.
func (o *output) add(ctx context.Context, e wire.Event) {
	switch e.Name {
	case "stdout", "stderr":
		var data wire.TextData
		if json.Unmarshal(e.Data, &data) == nil {
			o.flush()
			o.session.iopub(o.work, "stream", map[string]string{"name": e.Name, "text": data.Text})
		}
	case "display":
		var data wire.DisplayData
		if json.Unmarshal(e.Data, &data) == nil {
			o.display(ctx, data)
		}
	case "clear":
		var data wire.ClearData
		if json.Unmarshal(e.Data, &data) == nil {
			o.flush()
			o.session.iopub(o.work, "clear_output", map[string]bool{"wait": data.Wait})
		}
	case "progress":
		var data wire.ProgressData
		if json.Unmarshal(e.Data, &data) == nil {
			o.flush()
			o.session.iopub(o.work, "stream", map[string]string{"name": "stderr", "text": "[" + data.Message + "]\n"})
		}
	}
}

// display collects one type of a value, and sends the value when it is complete. Fetching a large one takes a moment.
func (o *output) display(ctx context.Context, d wire.DisplayData) {
	if v := o.value; v != nil && (v.number != d.Display || v.update != d.Update) {
		o.flush()
	}
	if o.value == nil {
		o.value = &value{number: d.Display, data: map[string]any{}, metadata: d.Metadata, id: d.DisplayID, update: d.Update, result: d.Result}
	}
	if d.ArtifactID != "" {
		o.value.large = append(o.value.large, d)
	} else {
		o.value.data[d.Mime] = shown(d.Mime, d.Data)
	}
	if d.More {
		return
	}
	for _, l := range o.value.large {
		text, ok := o.session.artifact(ctx, l)
		if !ok {
			o.session.iopub(o.work, "stream", map[string]string{"name": "stderr", "text": "[a displayed value is too large for a message: it is artifact " + l.ArtifactID + "]\n"})
			continue
		}
		o.value.data[l.Mime] = shown(l.Mime, text)
	}
	o.flush()
}

// flush sends the value that is being collected, if there is one.
func (o *output) flush() {
	v := o.value
	if v == nil {
		return
	}
	o.value = nil
	if len(v.data) == 0 {
		return
	}
	if _, widget := v.data[widgetMIME]; widget {
		o.session.catchUp() // the messages that made the widget were sent before it
	}
	o.session.iopub(o.work, v.kind(), v.content(o.session.kernel))
}

// widgetMIME is the type of values that show a widget.
const widgetMIME = "application/vnd.jupyter.widget-view+json"

func (v *value) kind() string {
	switch {
	case v.result:
		return "execute_result"
	case v.update:
		return "update_display_data"
	default:
		return "display_data"
	}
}

func (v *value) content(k *kernel) map[string]any {
	out := map[string]any{"data": v.data, "metadata": orEmpty(v.metadata)}
	transient := map[string]string{}
	if v.id != "" {
		transient["display_id"] = v.id
	}
	if v.result {
		out["execution_count"] = k.counted(0) + 1
	} else {
		out["transient"] = transient
	}
	return out
}

// shown is a value as notebooks expect it: objects as such, text as it is, other bytes as base64.
func shown(mime, data string) any {
	if strings.HasPrefix(mime, "text/") {
		return data
	}
	isJSON := strings.HasSuffix(mime, "json")
	if !isJSON && !strings.HasSuffix(mime, "+xml") && mime != "application/javascript" && mime != "application/xml" {
		return data
	}
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return data
	}
	if isJSON && json.Valid(raw) {
		return json.RawMessage(raw)
	}
	return string(raw)
}

// artifact reads a value that is too large for the record of its job.
func (s *session) artifact(ctx context.Context, r wire.DisplayData) (string, bool) {
	_, content, err := s.kernel.server.cfg.Service.OpenArtifact(ctx, s.kernel.ref.Tenant, r.ArtifactID, MaxMessageBytes/2)
	if err != nil || content == nil {
		return "", false
	}
	defer func() { _ = content.Close() }()
	var raw bytes.Buffer
	if _, err := io.Copy(&raw, io.LimitReader(content, MaxMessageBytes/2)); err != nil {
		return "", false
	}
	if strings.HasPrefix(r.Mime, "text/") {
		return raw.String(), true
	}
	return base64.StdEncoding.EncodeToString(raw.Bytes()), true
}
