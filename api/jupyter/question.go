package jupyter

import (
	"context"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// replyType is the type of the answer to a message.
func replyType(request string) string { return strings.TrimSuffix(request, "_request") + "_reply" }

// question answers a message that is no cell.
func (s *session) question(_ context.Context, w *work) {
	s.fail(w, farm.Invalidf("Messages of the type %s are not known here.", farm.Shorten(w.header.Type)))
}

// input passes on the answer to a request for input.
func (s *session) input(w *work) { w.release() }

// expressions evaluates what a cell asks for beside its code.
func (s *session) expressions(context.Context, map[string]string) map[string]any {
	return map[string]any{}
}

// catchUp sends what the kernel has said beside its cells up to now.
func (s *session) catchUp() {}
