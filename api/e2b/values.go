package e2b

import (
	"strings"

	"github.com/gin-gonic/gin"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sandfarm/sandfarm/api/e2b/envd"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/budget"
)

// envelopeBytes precede a message in the body of a stream: a byte of flags, and four of its length.
const envelopeBytes = 5

// chargeValues charges what the values of a message take once it is decoded, see budget.ChargeValues. Of the requests in the binary format
// only that of a start has lists.
func chargeValues(c *gin.Context, body []byte, start bool) error {
	kind, _, _ := rest.MediaType(c) // Connect answers what it does not know
	message := body
	if kind != "application/json" && kind != "application/proto" {
		message = body[min(envelopeBytes, len(body)):]
	}
	var err error
	switch {
	case strings.HasSuffix(kind, "json"):
		_, err = budget.ChargeValues(c.Request.Context(), message)
	case start:
		_, err = budget.ChargeCounted(c.Request.Context(), fields((&envd.StartRequest{}).ProtoReflect().Descriptor(), message), len(message))
	}
	return err
}

// fields counts the fields of a message in the binary format, and those of the messages in it.
func fields(message protoreflect.MessageDescriptor, text []byte) int {
	n := 0
	for len(text) > 0 {
		number, kind, size := protowire.ConsumeTag(text)
		if size < 0 {
			return n // Connect refuses the message
		}
		text = text[size:]
		if size = protowire.ConsumeFieldValue(number, kind, text); size < 0 {
			return n
		}
		n++
		if field := message.Fields().ByNumber(number); field != nil && field.Message() != nil && kind == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(text)
			n += fields(field.Message(), inner)
		}
		text = text[size:]
	}
	return n
}
