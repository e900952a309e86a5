package e2b

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/gin-gonic/gin"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sandfarm/sandfarm/api/e2b/envd"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

//go:generate go run -modfile=envd/gen.mod gen.go

// maxStreamed bounds one message of a stream of input, in bytes. It is charged once, since there is one at a time.
const maxStreamed = 1 << 20

// headerPing says how often a stream without output is to show that it lives, in seconds.
const headerPing = "Keepalive-Ping-Interval"

// defaultPing is how often it does if the caller says nothing, and at least.
const defaultPing = 90 * time.Second

// pingOf is how often a stream without messages shows that it lives.
func pingOf(h http.Header) time.Duration {
	if seconds, err := strconv.Atoi(h.Get(headerPing)); err == nil && seconds > 0 && seconds < int(defaultPing/time.Second) {
		return time.Duration(seconds) * time.Second
	}
	return defaultPing
}

// Procedures are the paths of all calls of envd's services, and whether each changes something that is worth a line in the audit.
func Procedures() map[string]bool {
	return map[string]bool{
		envd.ProcessListProcedure: false, envd.ProcessStartProcedure: true, envd.ProcessConnectProcedure: false,
		envd.ProcessUpdateProcedure: false, envd.ProcessSendInputProcedure: false, envd.ProcessStreamInputProcedure: false,
		envd.ProcessSendSignalProcedure: true, envd.ProcessCloseStdinProcedure: false,
		envd.FilesystemStatProcedure: false, envd.FilesystemMakeDirProcedure: true, envd.FilesystemMoveProcedure: true,
		envd.FilesystemListDirProcedure: false, envd.FilesystemRemoveProcedure: true, envd.FilesystemWatchDirProcedure: false,
		envd.FilesystemCreateWatcherProcedure: false, envd.FilesystemGetWatcherEventsProcedure: false,
		envd.FilesystemRemoveWatcherProcedure: false,
	}
}

// rpc is the handler of both services.
func (d *Gateway) rpc() http.Handler {
	mux := http.NewServeMux()
	options := []connect.HandlerOption{
		connect.WithInterceptors(failures{d.Logger}),
		connect.WithCompression("gzip", nil, nil), // the SDKs compress nothing here, and so nothing grows when it is read
		connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
			limit := d.MaxBody
			if spec.Procedure == envd.ProcessStreamInputProcedure {
				limit = maxStreamed
			}
			return []connect.HandlerOption{connect.WithReadMaxBytes(int(limit))}
		}),
	}
	mux.Handle(envd.NewProcessHandler(processes{d}, options...))
	mux.Handle(envd.NewFilesystemHandler(files{Gateway: d}, options...))
	return mux
}

// RPC serves a call of envd's services. prefix is what stands before the name of the service in the path.
func (d *Gateway) RPC(prefix string) Handler {
	handler := http.StripPrefix(prefix, d.rpc())
	return func(c *gin.Context, box Box) error {
		ctx := context.WithValue(c.Request.Context(), boxKey{}, box)
		r := c.Request.WithContext(ctx)
		if c.Request.URL.Path != prefix+envd.ProcessStreamInputProcedure { // that may be silent for as long as it likes
			text, err := rest.ReadAll(c, d.MaxBody) // which charges it; one message
			if err != nil {
				return err
			}
			if _, err := budget.Decoding(ctx, len(text), func() int { return values(c, text, c.Request.URL.Path == prefix+envd.ProcessStartProcedure) }); err != nil {
				return err
			}
			defer budget.LeaveCore(ctx) // at the latest: see decoded
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		} else {
			r.Body = onCore{r.Body, ctx}
		}
		handler.ServeHTTP(&streamed{c.Writer, ctx}, r)
		return nil
	}
}

// onCore is the body of a stream of messages. They are decoded on a core of the tenant (budget.TakeCore), which decoded gives back after each; the stream
// has none while it waits for bytes.
type onCore struct {
	io.ReadCloser
	ctx context.Context // for the core
}

// Read implements io.Reader. The error is that of the context where it waits for a core.
func (c onCore) Read(p []byte) (int, error) {
	budget.LeaveCore(c.ctx)
	n, err := c.ReadCloser.Read(p)
	if taken := budget.TakeCore(c.ctx, n); taken != nil {
		return 0, taken
	}
	return n, err
}

type boxKey struct{}

// boxOf is the sandbox of a call.
func boxOf(ctx context.Context) Box {
	box, _ := ctx.Value(boxKey{}).(Box) // RPC has put it there
	return box
}

// streamed writes an answer.
type streamed struct {
	gin.ResponseWriter
	ctx context.Context // of the request
}

// Write implements io.Writer. It gives back the core of a message that could not be decoded: the caller may read slowly.
func (s *streamed) Write(p []byte) (int, error) {
	budget.LeaveCore(s.ctx)
	return s.ResponseWriter.Write(p)
}

// failures turns errors of the farm into those of Connect.
type failures struct{ log *slog.Logger }

// WrapUnary implements connect.Interceptor.
func (f failures) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		budget.LeaveCore(ctx)
		out, err := next(ctx, r)
		return out, f.of(ctx, r.Spec().Procedure, err)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (f failures) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (f failures) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return f.of(ctx, conn.Spec().Procedure, next(ctx, decoded{conn, func() { budget.LeaveCore(ctx) }}))
	}
}

// decoded is a stream whose messages are read on a core, see RPC.
type decoded struct {
	connect.StreamingHandlerConn
	done func()
}

// Receive implements connect.StreamingHandlerConn.
func (d decoded) Receive(message any) error {
	defer d.done()
	return d.StreamingHandlerConn.Receive(message)
}

// of is an error as the SDKs see it.
func (f failures) of(ctx context.Context, procedure string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*connect.Error](err); ok {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the time of the request is over"))
	}
	if ctx.Err() != nil {
		return connect.NewError(connect.CodeCanceled, ctx.Err())
	}
	code := codeOf(err)
	if code == connect.CodeInternal {
		f.log.ErrorContext(ctx, "call failed", slog.String("procedure", procedure), slog.Any("error", err))
	}
	return connect.NewError(code, errors.New(farm.MessageOf(err)))
}

// codeOf is the code of an error as envd has it.
func codeOf(err error) connect.Code {
	switch farm.CodeOf(err) {
	case farm.CodeInvalid, farm.CodeConflict:
		return connect.CodeInvalidArgument
	case farm.CodeNotFound:
		return connect.CodeNotFound
	case farm.CodeUnauthorized:
		return connect.CodeUnauthenticated
	case farm.CodeExhausted, farm.CodeTooLarge:
		return connect.CodeResourceExhausted
	case farm.CodeUnavailable:
		return connect.CodeUnavailable
	default:
		return connect.CodeInternal
	}
}

// refusef makes an error that the SDKs see as it is.
func refusef(code connect.Code, message string) error {
	return connect.NewError(code, errors.New(message))
}

// envelopeBytes precede a message in the body of a stream: a byte of flags, and four of its length.
const envelopeBytes = 5

// values counts the values of a message for budget.Decoding. Of the requests in the binary format only that of a start has lists.
func values(c *gin.Context, body []byte, start bool) int {
	kind, _, _ := rest.MediaType(c) // Connect answers what it does not know
	message := body
	if kind != "application/json" && kind != "application/proto" {
		message = body[min(envelopeBytes, len(body)):]
	}
	switch {
	case strings.HasSuffix(kind, "json"):
		return budget.Values(message)
	case start:
		return fields((&envd.StartRequest{}).ProtoReflect().Descriptor(), message)
	default:
		return 1
	}
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
