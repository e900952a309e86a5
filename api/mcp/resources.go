package mcp

import (
	"context"
	"encoding/base64"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// addResources registers what resources/read can read: the addresses of the resource links in answers.
func (s *Server) addResources() {
	s.mcp.AddResourceTemplate(
		mcp.NewResourceTemplate("sandfarm://artifacts/{id}", "artifact",
			mcp.WithTemplateTitle("Artifact"), mcp.WithTemplateDescription("A file that a run made; it outlives its sandbox. Ids stand in the answers of runs.")),
		s.reader("id", func(ctx context.Context, args map[string]any) (found, error) {
			a, err := s.Farm(ctx).Artifact(ctx, variable(args, "id"), max(s.Limits.ResourceBlob, s.Limits.ResourceText))
			return found{content: a.Content, size: a.Size, mime: a.ContentType, link: func() (string, error) { return a.URL, nil }}, err
		}))
	s.mcp.AddResourceTemplate(
		mcp.NewResourceTemplate("sandfarm://sandboxes/{sandbox_id}/files/{+path}", "sandbox_file",
			mcp.WithTemplateTitle("File of a sandbox"), mcp.WithTemplateDescription("A file in the workspace of an open sandbox, as it is now.")),
		s.reader("path", func(ctx context.Context, args map[string]any) (found, error) {
			box, name := variable(args, "sandbox_id"), variable(args, "path")
			f, err := s.Farm(ctx).ReadFile(ctx, box, name, max(s.Limits.ResourceBlob, s.Limits.ResourceText))
			return found{
				content: f.Content, size: f.Entry.Size, mime: contentType(f.Entry.Path, f.Content),
				link: func() (string, error) { return s.Farm(ctx).LinkFile(ctx, box, name) },
			}, err
		}))
}

// found is the content of a resource; content is nil if it is too large.
type found struct {
	content []byte
	size    int64
	mime    string
	link    func() (string, error) // makes a link to a resource that is too large
}

// reader makes the handler of a template.
func (s *Server) reader(param string, read func(context.Context, map[string]any) (found, error)) server.ResourceTemplateHandlerFunc {
	about := &tool{name: "resources/read", pathParam: param}
	return func(ctx context.Context, r mcp.ReadResourceRequest) (contents []mcp.ResourceContents, err error) {
		defer func() {
			if v := recover(); v != nil {
				err = s.unreadable(ctx, about, fmt.Errorf("resource panicked: %v\n%s", v, debug.Stack()))
			}
		}()
		budget.LeaveCore(ctx) // of the message
		f, err := read(ctx, r.Params.Arguments)
		if err == nil {
			err = s.fits(f)
		}
		text := plain(f.content)
		if err == nil && text {
			err = budget.Quoting(ctx, f.content, 1)
		}
		if err != nil {
			return nil, s.unreadable(ctx, about, err)
		}
		if err := budget.TakeCore(ctx, len(f.content)); err != nil { // until the answer is encoded, see answering
			return nil, err
		}
		if text {
			return []mcp.ResourceContents{mcp.TextResourceContents{URI: r.Params.URI, MIMEType: f.mime, Text: string(f.content)}}, nil
		}
		return []mcp.ResourceContents{mcp.BlobResourceContents{URI: r.Params.URI, MIMEType: f.mime, Blob: base64.StdEncoding.EncodeToString(f.content)}}, nil
	}
}

// fits returns an error with a link for a resource that is too large to be read this way.
func (s *Server) fits(f found) error {
	limit := s.Limits.ResourceBlob
	if f.content != nil && plain(f.content) {
		limit = s.Limits.ResourceText
	}
	if f.content != nil && int64(len(f.content)) <= limit {
		return nil
	}
	url, err := f.link()
	if err != nil {
		return err
	}
	return farm.Errorf(farm.CodeTooLarge, "The resource has %d bytes; at most %d are read this way. Download it instead: %s", f.size, limit, url)
}

// unreadable is the error for a resource that cannot be read. It has a code that clients understand if the transport can choose
// one.
func (s *Server) unreadable(ctx context.Context, about *tool, err error) error {
	details := mcp.JSONRPCErrorDetails{Code: mcp.INVALID_PARAMS, Message: s.explain(ctx, about, err)}
	switch farm.CodeOf(err) {
	case farm.CodeTooLarge:
		details.Message = farm.MessageOf(err)
	case farm.CodeNotFound:
		if !server.IsModernRequest(ctx) {
			details.Code = mcp.RESOURCE_NOT_FOUND
		}
	case farm.CodeInternal, farm.CodeUnavailable, farm.CodeExhausted:
		details.Code = mcp.INTERNAL_ERROR
	}
	if d := deliveryOf(ctx); d != nil {
		d.refuse(details)
	}
	return fmt.Errorf("%s", details.Message) //nolint:err113 // the text is all that leaves the protocol's library
}

// variable is the value of a variable in a template's match.
func variable(args map[string]any, name string) string {
	switch v := args[name].(type) {
	case string:
		return v
	case []string:
		return strings.Join(v, "/")
	default:
		return ""
	}
}
