package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// A request is stored as JSON, or as a reference to a document of it, which is removed when the job ends. A request of which the job shows
// only the beginning (Accept.Whole) is stored once for both readers: the document whole, which lives as long as the job's record, has its
// code or commands, and the stored value is the reference to it. What callers may not see, such as the values of variables, is private:
// it follows the reference after a newline, in one of the two forms above. It has at most a few hundred KiB.

// Names of the documents of a request.
const (
	requestDocument = "request" // removed when the job ends
	wholeDocument   = "whole"
)

// privateSeparator follows the reference to the document whole. Keys of documents have no newlines.
const privateSeparator = "\n"

// withoutText is a request without its code and commands, which the document whole has.
func withoutText(r *farm.Request) *farm.Request {
	out := *r
	if r.Execute != nil {
		execute := *r.Execute
		execute.Code = ""
		out.Execute = &execute
	}
	if r.Command != nil {
		command := *r.Command
		command.Commands = nil
		out.Command = &command
	}
	return &out
}

// withText is the opposite of withoutText.
func withText(private, whole *farm.Request) *farm.Request {
	if private.Execute != nil && whole.Execute != nil {
		private.Execute.Code = whole.Execute.Code
	}
	if private.Command != nil && whole.Command != nil {
		private.Command.Commands = whole.Command.Commands
	}
	return private
}

// encodeRequest encodes a request, and what callers may see of it if that is a document of its own. Then value is the private part, which
// is empty if callers may see everything.
func encodeRequest(request, shown *farm.Request) (value, whole []byte, err error) {
	if shown == nil {
		value, err = db.Encode("request", request)
		return value, nil, err
	}
	if whole, err = db.Encode("request", shown); err != nil {
		return nil, nil, err
	}
	if value, err = db.Encode("request", withoutText(request)); err != nil {
		return nil, nil, err
	}
	public, err := db.Encode("request", withoutText(shown))
	if bytes.Equal(value, public) {
		value = nil
	}
	return value, whole, err
}

func decodeRequest(text string) (*farm.Request, error) {
	var request farm.Request
	if text == "" {
		return &request, nil
	}
	if err := json.Unmarshal([]byte(text), &request); err != nil {
		return nil, fmt.Errorf("decode request: %w", err)
	}
	return &request, nil
}

// readRequest reads a request from its stored value.
func (s *Store) readRequest(ctx context.Context, value string) (*farm.Request, error) {
	value, private, _ := strings.Cut(value, privateSeparator)
	text, err := s.Resolve(ctx, value)
	if err != nil {
		return nil, err
	}
	request, err := decodeRequest(text)
	if err != nil || private == "" {
		return request, err
	}
	// A second charge could be refused while the first is held.
	if text, err = s.Resolve(budget.Without(ctx), private); err != nil {
		return nil, err
	}
	hidden, err := decodeRequest(text)
	if err != nil {
		return nil, err
	}
	return withText(hidden, request), nil
}

// WholeRequest reads the request of a job that shows only its beginning (farm.Job.ShownCut), as callers may see it. CodeNotFound if it is
// not stored.
func (s *Store) WholeRequest(ctx context.Context, job farm.Ref) (*farm.Request, error) {
	text, err := s.Resolve(ctx, db.Reference+db.DocumentKey(job, wholeDocument))
	if err != nil {
		return nil, err
	}
	return decodeRequest(text)
}
