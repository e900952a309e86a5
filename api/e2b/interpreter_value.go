package e2b

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxValue bounds the large types of a displayed value in the stream together, in bytes: they are in memory at once. E2B's has no bound, and
// no links either.
const maxValue = 16 << 20

// costOfValue is how many bytes each byte of a large value takes: as it is, as base64, and as a line.
const costOfValue = 4

// value is a displayed value: its types, as far as they have arrived.
type value map[string]any

// keys are the names of the types that have one.
var keys = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpeg",
	"application/pdf": "pdf", "text/latex": "latex", "application/json": "json", "application/javascript": "javascript",
	"e2b/data": "data", "e2b/chart": "chart",
}

// display adds a type to the value that arrives, and a line when it is the last one.
func (s *stream) display(ctx context.Context, d *farm.RichResult) error {
	if s.value == nil {
		s.large = 0
		s.value = value{"type": "result", "is_main_result": d.Result}
	}
	content, ok, err := s.content(ctx, d)
	if err != nil {
		return err
	}
	if ok {
		s.value.put(d.Mime, content)
	}
	if d.More {
		return nil
	}
	if len(s.value) > 2 {
		s.line(s.value)
	}
	s.value = nil
	return nil
}

// put adds one type.
func (v value) put(mime string, content any) {
	if key, ok := keys[mime]; ok {
		v[key] = content
		return
	}
	extra, _ := v["extra"].(map[string]any)
	if extra == nil {
		extra = map[string]any{}
		v["extra"] = extra
	}
	extra[mime] = content
}

// content is the content of one type: text, base64, or an object. It reports whether there is any.
func (s *stream) content(ctx context.Context, d *farm.RichResult) (any, bool, error) {
	text := d.Data
	plain := strings.HasPrefix(d.Mime, "text/")
	if d.Artifact != nil {
		if d.Artifact.Size > maxValue-s.large { // a Hold at its tenant's share would take any more for nothing
			s.write(string(farm.EventStderr), "[a displayed value of type "+d.Mime+" was left out: it is too large]\n")
			return nil, false, nil
		}
		if err := budget.Charge(ctx, d.Artifact.Size*costOfValue); err != nil {
			return nil, false, err
		}
		s.large += d.Artifact.Size
		raw, err := s.service.Linked(ctx, d.Artifact)
		if farm.CodeOf(err) == farm.CodeNotFound { // replaced meanwhile
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		if text = string(raw); !plain && !textual(d.Mime) {
			text = base64.StdEncoding.EncodeToString(raw)
		}
	} else if textual(d.Mime) {
		raw, err := base64.StdEncoding.DecodeString(d.Data)
		if err != nil {
			return nil, false, nil // the worker encoded it
		}
		text = string(raw)
	}
	if structured(d.Mime) {
		if !json.Valid([]byte(text)) {
			return nil, false, nil
		}
		return json.RawMessage(text), true, nil
	}
	if d.Mime == "text/plain" {
		text = unquoted(text)
	}
	return text, true, nil
}

// structured reports whether a type is an object in the stream.
func structured(mime string) bool {
	return strings.HasSuffix(mime, "json") || mime == "e2b/data" || mime == "e2b/chart"
}

// textual reports whether a type that is not text/* is text.
func textual(mime string) bool {
	return structured(mime) || strings.HasSuffix(mime, "+xml") || mime == "application/javascript" || mime == "application/xml"
}

// unquoted is text without the quotes around a string, as E2B has it.
func unquoted(text string) string {
	if n := len(text); n > 1 && text[0] == text[n-1] && (text[0] == '\'' || text[0] == '"') {
		return text[1 : n-1]
	}
	return text
}
