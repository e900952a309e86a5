package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// eventBytes is the longest result that is sent as one event of a stream. Clients that use the official Python SDK end the session
// at an event of 1 MiB; the rest up to that is for the envelope and the request's id.
const eventBytes = 1_000_000

// tooLong tells a model that the answer is incomplete.
const tooLong = "note: this answer was too long for one message, so it has been shortened: print less, or write to a file and download it."

// fitted is tool middleware: it shortens results that are too long for one event of a stream. A large result has a core of the tenant's from here until
// it is encoded (answering, SSE.answer).
func fitted(next server.ToolHandlerFunc) server.ToolHandlerFunc {
	return func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		result, err := next(ctx, r)
		if err != nil || result == nil {
			return result, err
		}
		if err := escaping(ctx, result); err != nil { // before the core, since it may wait
			return nil, err
		}
		if err := budget.TakeCore(ctx, weigh(result)); err != nil {
			return nil, err
		}
		if streamed(ctx, r) {
			fit(result, eventBytes)
		}
		return result, nil
	}
}

// escaping charges the request for what the library makes of the texts of a large result, in which it escapes <, > and &. Structured content has them
// once more. A result that there is no memory for is shortened: its code has run. The error is that of ctx.
func escaping(ctx context.Context, r *mcp.CallToolResult) error {
	for _, block := range r.Content {
		text, ok := block.(mcp.TextContent)
		if !ok || len(text.Text) <= budget.SmallBytes {
			continue
		}
		copies := 1
		if r.StructuredContent != nil {
			copies = 2
		}
		if budget.Quoting(ctx, text.Text, copies) == nil {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		*r = *(shortener{text: scarceText, items: leastItems}).of(r)
		r.Content = append(r.Content, mcp.NewTextContent(tooLong))
		return nil
	}
	return nil
}

// weigh is about how long a value is in JSON, in bytes. It stops above budget.SmallBytes.
func weigh(value any) int {
	left := budget.SmallBytes
	weighTo(reflect.ValueOf(value), &left)
	return budget.SmallBytes - left
}

// weighTo takes the length of a value from left, until there is nothing left.
func weighTo(v reflect.Value, left *int) {
	const least = 8 // of a value
	*left -= least
	switch v.Kind() {
	case reflect.String:
		*left -= v.Len()
	case reflect.Pointer, reflect.Interface:
		weighTo(v.Elem(), left)
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			*left -= v.Len()
			return
		}
		for i := 0; i < v.Len() && *left >= 0; i++ {
			weighTo(v.Index(i), left)
		}
	case reflect.Map:
		for each := v.MapRange(); *left >= 0 && each.Next(); {
			weighTo(each.Key(), left)
			weighTo(each.Value(), left)
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && *left >= 0; i++ {
			weighTo(v.Field(i), left)
		}
	}
}

// streamed reports whether a call's result is sent as an event of a stream: always over SSE, and over streamable HTTP if the caller
// asked for progress.
func streamed(ctx context.Context, r mcp.CallToolRequest) bool {
	if _, ok := server.ClientSessionFromContext(ctx).(*stream); ok {
		return true
	}
	d := deliveryOf(ctx)
	return d != nil && d.one && r.Params.Meta != nil && r.Params.Meta.ProgressToken != nil
}

// fit shortens a result to at most so many bytes. It drops structured content that repeats the text, then pictures, then cuts long
// texts, then long lists. A result that fits is not changed.
func fit(r *mcp.CallToolResult, limit int) {
	if encodedLen(r) <= limit {
		return
	}
	if len(r.Content) == 1 && isJSON(r.Content[0]) {
		r.StructuredContent = nil
		if encodedLen(r) <= limit {
			return
		}
	}
	full := *r
	full.Content = append(slices.Clone(r.Content), mcp.NewTextContent(tooLong))
	for encodedLen(&full) > limit && dropPicture(&full) { //nolint:revive // dropping is all there is to do
	}
	*r = full
	for _, items := range []int{1 << 20, 1000, 250, 100, leastItems} {
		if least := (shortener{text: leastText, items: items}).of(&full); encodedLen(least) > limit && items > leastItems {
			continue // the lists are too long
		}
		for text := 512 << 10; text >= leastText && encodedLen(r) > limit; text /= 2 {
			*r = *(shortener{text: text, items: items}).of(&full)
		}
		return
	}
}

// isJSON reports whether a block is a text in JSON, as the answers of sets are.
func isJSON(block mcp.Content) bool {
	text, ok := block.(mcp.TextContent)
	return ok && json.Valid([]byte(text.Text))
}

// dropPicture drops the largest picture of a result, if it has any.
func dropPicture(r *mcp.CallToolResult) bool {
	largest, at := 0, -1
	for i, block := range r.Content {
		if picture, ok := block.(mcp.ImageContent); ok && len(picture.Data) > largest {
			largest, at = len(picture.Data), i
		}
	}
	if at >= 0 {
		r.Content = slices.Delete(r.Content, at, at+1)
	}
	return at >= 0
}

func encodedLen(value any) int {
	text, err := json.Marshal(value)
	if err != nil {
		return 0 // the send reports the error
	}
	return len(text)
}

// The least that is left of a text (bytes) and of a list (entries).
const (
	leastText  = 4 << 10
	leastItems = 25
)

// scarceText is what is left of a text while there is no memory for its escapes, in bytes.
const scarceText = 8 << 10

// shortener cuts texts and lists that are longer than its limits.
type shortener struct{ text, items int }

// of returns a result with its texts and lists cut.
func (s shortener) of(r *mcp.CallToolResult) *mcp.CallToolResult {
	short := *r
	short.Content, short.StructuredContent = s.content(r.Content), s.structured(r.StructuredContent)
	return &short
}

// content cuts text blocks. In a block that is JSON it cuts the texts and lists inside.
func (s shortener) content(blocks []mcp.Content) []mcp.Content {
	out := slices.Clone(blocks)
	for i, block := range out {
		text, ok := block.(mcp.TextContent)
		if !ok || len(text.Text) <= s.text && !json.Valid([]byte(text.Text)) {
			continue
		}
		if short, err := s.json([]byte(text.Text)); err == nil {
			text.Text = string(short)
		} else {
			text.Text = middleCut(text.Text, s.text)
		}
		out[i] = text
	}
	return out
}

// structured cuts structured content, and marks the cut streams if the content has marks for that.
func (s shortener) structured(value any) any {
	if value == nil {
		return nil
	}
	text, err := farm.Encode(value)
	if err != nil {
		return value
	}
	if members, ok := value.(map[string]any); ok {
		text = s.marked(members, text)
	}
	short, err := s.json(text)
	if err != nil {
		return value
	}
	return json.RawMessage(short)
}

// marked encodes the members with "truncated" true for each stream that will be cut.
func (s shortener) marked(members map[string]any, text []byte) []byte {
	marks, ok := members["truncated"].(map[string]any)
	if !ok {
		return text
	}
	all, set := maps.Clone(members), map[string]any{}
	for name, mark := range marks {
		stream, _ := members[name].(string)
		set[name] = mark == true || len(stream) > s.text
	}
	all["truncated"] = set
	if marked, err := farm.Encode(all); err == nil {
		return marked
	}
	return text
}

// json cuts the texts and lists inside an object or a list and keeps the order of members.
func (s shortener) json(text []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var out bytes.Buffer
	if first := bytes.TrimSpace(text); len(first) == 0 || first[0] != '{' && first[0] != '[' {
		return nil, errors.New("no object and no list")
	}
	if err := s.value(d, &out, ""); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	return out.Bytes(), nil
}

func (s shortener) value(d *json.Decoder, out *bytes.Buffer, member string) error {
	token, err := d.Token()
	if err != nil {
		return fmt.Errorf("read value: %w", err)
	}
	switch t := token.(type) {
	case json.Delim:
		return s.members(d, out, t)
	case string:
		token = s.cut(member, t)
	}
	text, err := farm.Encode(token)
	out.Write(text)
	return err
}

// cut keeps the head and the tail of a long text. A displayed value in base64 is dropped as a whole: half a picture is useless.
func (s shortener) cut(member, text string) string {
	if member == displayed && len(text) > s.text && isBase64(text) {
		return fmt.Sprintf("[%d bytes left out; use the link, or write to a file and download it]", len(text))
	}
	return middleCut(text, s.text)
}

// displayed is the name of the member that holds a displayed value, in every shape of answer.
const displayed = "data"

// isBase64 reports whether a text has only characters of base64.
func isBase64(text string) bool {
	return strings.TrimLeft(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") == ""
}

// members cuts the content of an object or list whose opening token was just read.
func (s shortener) members(d *json.Decoder, out *bytes.Buffer, begin json.Delim) error {
	out.WriteRune(rune(begin))
	for n := 0; d.More(); n++ {
		if begin == '[' && n >= s.items {
			var rest json.RawMessage
			if err := d.Decode(&rest); err != nil {
				return fmt.Errorf("skip value: %w", err)
			}
			continue
		}
		if n > 0 {
			out.WriteByte(',')
		}
		member := ""
		if begin == '{' {
			name, err := d.Token()
			if err != nil {
				return fmt.Errorf("read name: %w", err)
			}
			member, _ = name.(string)
			text, err := farm.Encode(name)
			if err != nil {
				return err
			}
			out.Write(text)
			out.WriteByte(':')
		}
		if err := s.value(d, out, member); err != nil {
			return err
		}
	}
	end, err := d.Token()
	if err != nil {
		return fmt.Errorf("read end: %w", err)
	}
	out.WriteString(fmt.Sprint(end))
	return nil
}
