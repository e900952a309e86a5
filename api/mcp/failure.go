package mcp

import (
	"context"
	"log/slog"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// failed is the answer to a call that went wrong: what was wrong, and what to do next. It has no structured content,
// which would have to look like a success.
func (s *Server) failed(ctx context.Context, t *tool, err error) *mcp.CallToolResult {
	return mcp.NewToolResultError(s.explain(ctx, t, err))
}

// explain tells an error to a model. Errors that are ours are logged under an id and not told.
func (s *Server) explain(ctx context.Context, t *tool, err error) string {
	if ctx.Err() != nil {
		return "The call ended before its work. What was started goes on: get_job_result tells how it stands."
	}
	code, message := farm.CodeOf(err), farm.MessageOf(err)
	if message == "" {
		code = farm.CodeInternal
	}
	switch code {
	case farm.CodeInvalid:
		return named(t, message) + "\nCorrect the arguments and call " + t.name + " again."
	case farm.CodeNotFound:
		return named(t, message) + "\n" + whereToLook(message)
	case farm.CodeConflict:
		return message + "\nCall list_sandboxes to see which sandboxes take work, or create_sandbox for a new one."
	case farm.CodeTooLarge:
		return named(t, message) + "\nSend less at once, or move the data as a file."
	case farm.CodeExhausted:
		return message + "\nWait a few seconds and call " + t.name + " again; close_sandbox frees what is no longer needed."
	case farm.CodeUnauthorized:
		return message + "\nOnly the person who set this server up can put that right."
	case farm.CodeUnavailable:
		s.Logger.WarnContext(ctx, "mcp call failed", slog.String("tool", t.name), slog.Any("error", err))
		return message + "\nTry again in a few seconds."
	default:
		return "Something went wrong on the server's side; its log tells more under " + s.logged(ctx, t.name, err) +
			".\nTry again once; if it happens again, tell the user."
	}
}

// named puts the tool's own name of a parameter into a sentence of the farm, which has another one for it.
func named(t *tool, message string) string {
	switch {
	case t.pathParam != "" && strings.HasPrefix(message, "path "):
		return t.pathParam + ": " + message
	case strings.HasPrefix(message, "packages[") || strings.HasPrefix(message, "packages is "):
		for _, p := range t.params {
			if p.name == "package_names" {
				return "package_names" + strings.TrimPrefix(message, "packages")
			}
		}
	}
	return message
}

func whereToLook(message string) string {
	switch {
	case strings.Contains(message, "sandbox"):
		return "Call list_sandboxes to see the open sandboxes, or create_sandbox for a new one."
	case strings.Contains(message, "job"):
		return "Give job_id exactly as an earlier answer told it; jobs are forgotten some days after they ended."
	default:
		return "Call list_files to see what is there."
	}
}

// jobFailed tells that a job ended for a reason that is not the caller's code.
func jobFailed(jobID, state, code, message string) error {
	if message == "" {
		message = "The work was " + state + "."
	}
	kind := farm.Code(code)
	if kind == "" || kind == farm.CodeInternal {
		kind = farm.CodeUnavailable
	}
	return farm.Errorf(kind, "%s (job %s, %s)", strings.TrimSpace(message), jobID, state)
}
