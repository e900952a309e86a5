package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/gin-gonic/gin"
)

// Reply answers with JSON. Its error is always nil, so that a handler can end with it.
func Reply(c *gin.Context, status int, v any) error {
	WriteJSON(c, status, "application/json; charset=utf-8", v)
	return nil
}

// WriteJSON answers with JSON of a media type. It panics on a value that cannot be encoded.
func WriteJSON(c *gin.Context, status int, contentType string, v any) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // our own types always encode; Recover answers 500
	}
	h := c.Writer.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(text.Len()))
	c.Status(status)
	_ = NewDeadlineWriter(c).Send(text.Bytes()) // on an error the caller has left
}
