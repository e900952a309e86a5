package mcp

import (
	"context"
	"log/slog"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// failed is the result of a call that failed: what was wrong and what to do next. It has no structured content, because that
// would have to fit the schema of a success.
func (s *Server) failed(ctx context.Context, t *tool, err error) *mcp.CallToolResult {
	return mcp.NewToolResultError(s.explain(ctx, t, err))
}

// explain turns an error into a sentence for a model. Internal errors are logged under an id, and only the id is shown.
func (s *Server) explain(ctx context.Context, t *tool, err error) string {
	if ctx.Err() != nil {
		return "The call ended before its job. The job continues: get_job_result has its state and result."
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
		wait := "Wait a few seconds and call " + t.name + " again; close_sandbox"
		if advises(message) {
			wait = "close_sandbox"
		}
		return message + "\n" + wait + " frees what is no longer needed."
	case farm.CodeUnauthorized:
		return message + "\nOnly the operator of this server can change that."
	case farm.CodeUnavailable:
		s.Logger.WarnContext(ctx, "mcp call failed", slog.String("tool", t.name), slog.Any("error", err))
		if advises(message) {
			return message
		}
		return message + "\nTry again in a few seconds."
	default:
		return "Internal error of the server. Its log has the details under " + s.logged(ctx, t.name, err) +
			".\nTry again once; if it fails again, tell the user."
	}
}

// advises reports whether a message of the farm says itself what to do: to try again and when, or to send the work to a new sandbox.
func advises(message string) bool { return strings.Contains(message, "again") }

// named replaces the farm's name of a field by the tool's name of the parameter, such as packages by package_names.
func named(t *tool, message string) string {
	message = strings.ReplaceAll(message, "resources.", "") // create_sandbox takes memory_mb and the like without the object around them
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
	case strings.Contains(message, "has no process"):
		return "Give process_id exactly as start_process answered. Stopped processes are forgotten, and those that ended long ago; start_process starts a new one."
	case strings.Contains(message, "has no context"):
		return "Leave context out to restart all kernels. A context begins with the first code that names it."
	case strings.Contains(message, "sandbox"):
		return "Call list_sandboxes to see the open sandboxes, or create_sandbox for a new one."
	case strings.Contains(message, "job"):
		return "Give job_id exactly as in an earlier answer. Jobs are deleted some days after their end."
	default:
		return "Call list_files to see which files exist."
	}
}

// jobFailed is the error for a job that ended for a reason other than the caller's code.
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
