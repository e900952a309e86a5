package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// The methods of the extension.
const (
	methodTaskGet    = "tasks/get"
	methodTaskUpdate = "tasks/update"
	methodTaskCancel = "tasks/cancel"
)

// taskAnswerTimeout is how long a caller may take to receive a result, which may contain pictures.
const taskAnswerTimeout = time.Minute

// AdvertiseTasks makes an MCP server advertise the extension, which Tasks serves.
func AdvertiseTasks() server.ServerOption {
	return server.WithExtensions(map[string]any{TasksExtension: map[string]any{}})
}

// Tasks serves the extension: it answers tool calls that become tasks with the task, and serves the methods to read, answer and
// cancel tasks. It handles requests of protocol revision 2026-07-28 or later that declare the extension and passes on all others. A
// nil logger logs nothing.
func Tasks(source TaskSource, info mcp.Implementation, logger *slog.Logger) Extension {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return func(_ *server.MCPServer, next http.Handler) http.Handler {
		return &tasks{source: source, info: info, logger: logger, next: next}
	}
}

type tasks struct {
	source TaskSource
	info   mcp.Implementation
	logger *slog.Logger
	next   http.Handler
}

// taskMessage is what the extension reads of a message.
type taskMessage struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	params struct {
		Meta    *mcp.Meta                  `json:"_meta"`
		Name    string                     `json:"name"`
		TaskID  *string                    `json:"taskId"`
		Answers map[string]json.RawMessage `json:"inputResponses"`
	}
	malformed error // why params could not be read
}

// ServeHTTP answers the methods of the extension.
func (x *tasks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var m taskMessage
	if err != nil || json.Unmarshal(body, &m) != nil || len(m.ID) == 0 {
		x.next.ServeHTTP(w, r)
		return
	}
	ours := m.Method == methodTaskGet || m.Method == methodTaskUpdate || m.Method == methodTaskCancel
	if !ours && m.Method != string(mcp.MethodToolsCall) {
		x.next.ServeHTTP(w, r)
		return
	}
	m.malformed = json.Unmarshal(m.Params, &m.params)
	if !mcp.IsModernProtocol(m.params.Meta.ProtocolVersion()) && !mcp.IsModernProtocol(r.Header.Get(mcp.HeaderProtocolVersion)) {
		x.next.ServeHTTP(w, r)
		return
	}
	if ours {
		x.serve(w, r, &m)
		return
	}
	x.call(w, r, &m)
}

// call runs a tool and answers with its task if the call became one.
func (x *tasks) call(w http.ResponseWriter, r *http.Request, m *taskMessage) {
	support := x.source.Support(m.params.Name)
	declared := declaresTasks(m.params.Meta)
	switch {
	case support == TaskRequired && !declared:
		refuseTask(w, m.ID, missingTasks())
		return
	case support == TaskNever || !declared:
		x.next.ServeHTTP(w, r)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	call := &taskCall{end: cancel}
	buffered := &bufferedAnswer{header: w.Header().Clone(), status: http.StatusOK}
	x.next.ServeHTTP(buffered, r.WithContext(context.WithValue(ctx, taskKey{}, call)))
	task := call.made()
	if task == nil {
		buffered.release(w)
		return
	}
	created := *task
	created.Result, created.Error, created.Input = nil, nil, nil // those are for tasks/get
	x.reply(r.Context(), w, m.ID, struct {
		taskResult
		Task
	}{x.resultOf("task"), created})
}

// serve answers a method of the extension.
func (x *tasks) serve(w http.ResponseWriter, r *http.Request, m *taskMessage) {
	if refusal := check2026(r, m); refusal != nil {
		refuseTask(w, m.ID, *refusal)
		return
	}
	budget.LeaveCore(r.Context()) // of the message
	id := *m.params.TaskID
	var answer any = x.resultOf("complete")
	var err error
	switch m.Method {
	case methodTaskGet:
		var t Task
		if t, err = x.source.Task(r.Context(), id); err == nil {
			answer = struct {
				taskResult
				Task
			}{x.resultOf("complete"), t}
		}
	case methodTaskUpdate:
		err = x.source.Answer(r.Context(), id, m.params.Answers)
	case methodTaskCancel:
		err = x.source.Cancel(r.Context(), id)
	}
	refused, _ := errors.AsType[*farm.Error](err)
	switch {
	case errors.Is(err, ErrNoTask):
		refuseTask(w, m.ID, mcp.JSONRPCErrorDetails{Code: mcp.INVALID_PARAMS, Message: fmt.Sprintf("There is no task %q: give taskId exactly as in the answer; tasks are deleted some time after their end.", farm.Shorten(id))})
	case refused != nil && refused.Code == farm.CodeUnauthorized: // a key that may only read
		refuseTask(w, m.ID, mcp.JSONRPCErrorDetails{Code: mcp.INVALID_REQUEST, Message: refused.Message})
	case err != nil:
		x.logger.ErrorContext(r.Context(), "mcp task method failed", slog.String("method", m.Method), slog.Any("error", err))
		refuseTask(w, m.ID, mcp.JSONRPCErrorDetails{Code: mcp.INTERNAL_ERROR, Message: "The farm could not be asked about the task. Try again in a few seconds."})
	default:
		x.reply(r.Context(), w, m.ID, answer)
	}
}

// check2026 checks a request against the rules for all requests of revision 2026-07-28.
func check2026(r *http.Request, m *taskMessage) *mcp.JSONRPCErrorDetails {
	version := m.params.Meta.ProtocolVersion()
	switch header := r.Header.Get(mcp.HeaderProtocolVersion); {
	case m.malformed != nil:
		return &mcp.JSONRPCErrorDetails{Code: mcp.INVALID_PARAMS, Message: "params cannot be read: " + m.malformed.Error()}
	case version == "":
		return &mcp.JSONRPCErrorDetails{Code: mcp.INVALID_PARAMS, Message: "missing or invalid _meta field " + mcp.MetaKeyProtocolVersion}
	case header != version:
		return &mcp.JSONRPCErrorDetails{Code: mcp.HEADER_MISMATCH, Message: fmt.Sprintf("the %s header %q does not match the version %q in _meta", mcp.HeaderProtocolVersion, header, version)}
	case !mcp.IsValidProtocolVersion(version):
		details := mcp.UnsupportedProtocolVersionError{Version: version, Supported: slices.Clone(mcp.ValidProtocolVersions)}.JSONRPCError().Error
		return &details
	case m.params.Meta.ClientCapabilities() == nil:
		return &mcp.JSONRPCErrorDetails{Code: mcp.INVALID_PARAMS, Message: "missing or invalid _meta field " + mcp.MetaKeyClientCapabilities}
	}
	if err := mcp.ValidateStandardHeaders(r.Header.Get, version, mcp.MCPMethod(m.Method), m.Params); err != nil {
		return &mcp.JSONRPCErrorDetails{Code: mcp.HEADER_MISMATCH, Message: err.Error()}
	}
	if !declaresTasks(m.params.Meta) {
		details := missingTasks()
		return &details
	}
	if m.params.TaskID == nil {
		return &mcp.JSONRPCErrorDetails{Code: mcp.INVALID_PARAMS, Message: "taskId is missing"}
	}
	// A proxy may route by this header.
	name, ok := mcp.DecodeHeaderValue(r.Header.Get(mcp.HeaderName))
	if !ok || name != *m.params.TaskID {
		return &mcp.JSONRPCErrorDetails{Code: mcp.HEADER_MISMATCH, Message: fmt.Sprintf("the %s header %q does not match params.taskId %q", mcp.HeaderName, farm.Shorten(name), farm.Shorten(*m.params.TaskID))}
	}
	return nil
}

func declaresTasks(meta *mcp.Meta) bool {
	declared := meta.ClientCapabilities()
	if declared == nil {
		return false
	}
	_, ok := declared.Extensions[TasksExtension]
	return ok
}

func missingTasks() mcp.JSONRPCErrorDetails {
	return mcp.JSONRPCErrorDetails{
		Code:    mcp.MISSING_REQUIRED_CLIENT_CAPABILITY,
		Message: "this needs the extension " + TasksExtension + ", which the request does not declare",
		Data: map[string]any{
			"capability":           TasksExtension,
			"requiredCapabilities": map[string]any{"extensions": map[string]any{TasksExtension: map[string]any{}}},
		},
	}
}

// taskResult has the fields of every result of revision 2026-07-28.
type taskResult struct {
	ResultType string         `json:"resultType"`
	Meta       map[string]any `json:"_meta"`
}

func (x *tasks) resultOf(kind string) taskResult {
	return taskResult{ResultType: kind, Meta: map[string]any{mcp.MetaKeyServerInfo: x.info}}
}

// reply answers a request with a result, a large one on a core of the tenant's.
func (x *tasks) reply(ctx context.Context, w http.ResponseWriter, id json.RawMessage, result any) {
	// A caller that does not read the answer loses the connection.
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(taskAnswerTimeout)) // not every writer has deadlines
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_ = budget.TakeCore(ctx, weigh(result)) // an error means that the caller disconnected
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false) // the library escapes the texts of results all the same (escaping)
	err := encoder.Encode(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  any             `json:"result"`
	}{mcp.JSONRPC_VERSION, id, result})
	if err != nil {
		x.logger.Debug("mcp task answer not taken", slog.Any("error", err))
	}
}

// refuseTask answers a request with an error of the protocol.
func refuseTask(w http.ResponseWriter, id json.RawMessage, details mcp.JSONRPCErrorDetails) {
	status := http.StatusBadRequest
	if details.Code == mcp.INTERNAL_ERROR {
		status = http.StatusOK
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(failure(id, details)) // an error means that the caller disconnected
}

// bufferedAnswer buffers the answer to a call until it is known whether the call became a task.
type bufferedAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header gives the headers of the answer.
func (h *bufferedAnswer) Header() http.Header { return h.header }

// WriteHeader keeps the status.
func (h *bufferedAnswer) WriteHeader(status int) { h.status = status }

// Write keeps a piece of the body.
func (h *bufferedAnswer) Write(p []byte) (int, error) { return h.body.Write(p) }

// Flush does nothing: the answer is sent at the end.
func (h *bufferedAnswer) Flush() {}

// release sends the answer to the caller.
func (h *bufferedAnswer) release(w http.ResponseWriter) {
	for name, values := range h.header {
		w.Header()[name] = values
	}
	w.WriteHeader(h.status)
	_, _ = h.body.WriteTo(w) // an error means that the caller disconnected
}
