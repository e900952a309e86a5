package e2b

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/sandfarm/sandfarm/api/e2b/envd"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// processes implements envd.ProcessHandler with the processes of the farm.
type processes struct{ *Gateway }

// List lists the processes that run.
func (p processes) List(ctx context.Context, r *connect.Request[envd.ListRequest]) (*connect.Response[envd.ListResponse], error) {
	box := boxOf(ctx)
	list, err := p.Service.Processes(ctx, box.Tenant, box.ID, false)
	if err != nil {
		return nil, err
	}
	out := &envd.ListResponse{}
	for _, one := range list.Items {
		if one.State != string(farm.ProcessRunning) {
			continue
		}
		info := &envd.ProcessInfo{Config: &envd.ProcessConfig{}, Pid: uint32(one.PID)} //nolint:gosec // a pid is small and not negative
		if len(one.Argv) > 0 {
			info.Config.Cmd, info.Config.Args = one.Argv[0], one.Argv[1:]
		} else {
			info.Config.Cmd = one.Command
		}
		if one.Name != "" {
			info.Tag = &one.Name
		}
		out.Processes = append(out.Processes, info)
	}
	return connect.NewResponse(out), nil
}

// Start starts a process and streams its output until its end. It runs on if the caller leaves; the time of the request is its life.
func (p processes) Start(ctx context.Context, r *connect.Request[envd.StartRequest], out *connect.ServerStream[envd.StartResponse]) error {
	if err := callUser(r.Header()); err != nil {
		return err
	}
	box := boxOf(ctx)
	made, err := p.Service.StartProcess(ctx, service.Call{Tenant: box.Tenant, Awaited: true}, box.ID, p.request(ctx, r.Msg))
	if err != nil {
		return err
	}
	return p.stream(ctx, made, r.Header(), func(e *envd.ProcessEvent) error { return out.Send(&envd.StartResponse{Event: e}) })
}

// request is a request for a process of the farm.
func (p processes) request(ctx context.Context, r *envd.StartRequest) wire.ProcessRequest {
	config := r.GetProcess()
	cwd := placeOf(config.GetCwd())
	out := wire.ProcessRequest{
		Argv: append([]string{config.GetCmd()}, config.GetArgs()...), Env: Environment(config.GetEnvs(), cwd.real), Name: r.GetTag(), Stdin: r.Stdin == nil || r.GetStdin(),
		Cwd: cwd.real,
	}
	if size := r.GetPty().GetSize(); r.Pty != nil {
		out.PTY = &wire.TerminalSize{Cols: int(size.GetCols()), Rows: int(size.GetRows())}
	}
	if end, ok := ctx.Deadline(); ok {
		seconds := int(time.Until(end)/time.Second) + 1
		if seconds <= p.Service.Bounds().TimeoutMaxSeconds { // beyond, the sandbox's own life ends it
			out.TimeoutSeconds = &seconds
		}
	}
	return out
}

// Connect streams the output of a process that runs: what is kept of it, then what comes.
func (p processes) Connect(ctx context.Context, r *connect.Request[envd.ConnectRequest], out *connect.ServerStream[envd.ConnectResponse]) error {
	found, err := p.find(ctx, r.Msg.GetProcess(), true)
	if err != nil {
		return err
	}
	return p.stream(ctx, found, r.Header(), func(e *envd.ProcessEvent) error { return out.Send(&envd.ConnectResponse{Event: e}) })
}

// find finds the process that a selector names; ended also one that has ended.
func (p processes) find(ctx context.Context, s *envd.ProcessSelector, ended bool) (wire.Process, error) {
	box := boxOf(ctx)
	list, err := p.Service.Processes(ctx, box.Tenant, box.ID, false)
	if err != nil {
		return wire.Process{}, err
	}
	var found wire.Process
	for _, one := range list.Items { // the newest that fits, since the kernel uses numbers again
		byTag := s.GetTag() != "" && one.Name == s.GetTag()
		if (byTag || s.GetPid() != 0 && one.PID == int(s.GetPid())) && (ended || one.State == string(farm.ProcessRunning)) {
			found = one
		}
	}
	if found.ID == "" {
		return found, farm.NotFoundf("process with pid %d not found", s.GetPid())
	}
	return found, nil
}

// stream sends the events of a process: its start, its output, its end.
func (p processes) stream(ctx context.Context, of wire.Process, h http.Header, send func(*envd.ProcessEvent) error) error {
	box := boxOf(ctx)
	output, err := p.Service.ProcessOutput(ctx, box.Tenant, box.ID, of.ID, "")
	if err != nil {
		return err
	}
	defer output.Close()
	start := &envd.ProcessEvent_StartEvent{Pid: uint32(of.PID)} //nolint:gosec // a pid is small and not negative
	if err := send(&envd.ProcessEvent{Event: &envd.ProcessEvent_Start{Start: start}}); err != nil {
		return err
	}
	ping := pingOf(h)
	for {
		piece, ok, err := output.NextPiece(ctx, ping)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return p.ended(ctx, err)
		case !ok:
			err = send(&envd.ProcessEvent{Event: &envd.ProcessEvent_Keepalive{Keepalive: &envd.ProcessEvent_KeepAlive{}}})
		case piece.Kind == farm.OutputExit:
			if piece.End.TimedOut {
				return refusef(connect.CodeDeadlineExceeded, "the time of the process is over")
			}
			return send(&envd.ProcessEvent{Event: &envd.ProcessEvent_End{End: endOf(piece.End)}})
		case len(piece.Data) > 0:
			err = send(&envd.ProcessEvent{Event: &envd.ProcessEvent_Data{Data: dataOf(piece, of.PTY != nil)}})
		}
		if err != nil {
			return err
		}
		budget.Keep(ctx, 0) // what is sent is not held
	}
}

// ended is the error of a stream whose sandbox does not answer: if the sandbox does not run, the error is one that the SDKs take for a time-out. An answer
// that broke off would not do: over HTTP/1.1 the SDK for Python asks then for no health.
func (p processes) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if gone, ok := errors.AsType[*Gone](p.Running(ctx, boxOf(ctx))); ok {
		return refusef(connect.CodeUnavailable, gone.Error()+": the sandbox was killed or reached its end of life, or it is paused")
	}
	return err
}

func dataOf(piece farm.Output, terminal bool) *envd.ProcessEvent_DataEvent {
	switch {
	case terminal:
		return &envd.ProcessEvent_DataEvent{Output: &envd.ProcessEvent_DataEvent_Pty{Pty: piece.Data}}
	case piece.Kind == farm.OutputStderr:
		return &envd.ProcessEvent_DataEvent{Output: &envd.ProcessEvent_DataEvent_Stderr{Stderr: piece.Data}}
	default:
		return &envd.ProcessEvent_DataEvent{Output: &envd.ProcessEvent_DataEvent_Stdout{Stdout: piece.Data}}
	}
}

// endOf says how a process ended. The farm counts as a shell does, so a signal is its number and 128.
func endOf(end *farm.ProcessEnd) *envd.ProcessEvent_EndEvent {
	code := *end.ExitCode
	out := &envd.ProcessEvent_EndEvent{ExitCode: int32(code), Exited: true, Status: fmt.Sprintf("exit status %d", code)} //nolint:gosec // 0 to 255
	var why string
	switch {
	case end.OutOfMemory:
		why = end.Reason
	case code != 0:
		why = out.Status
	default:
		return out
	}
	out.Error = &why
	return out
}

// Update sets the size of the terminal of a process.
func (p processes) Update(ctx context.Context, r *connect.Request[envd.UpdateRequest]) (*connect.Response[envd.UpdateResponse], error) {
	found, err := p.find(ctx, r.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if size := r.Msg.GetPty().GetSize(); size != nil {
		box := boxOf(ctx)
		if _, err := p.Service.ResizeProcess(ctx, service.Call{Tenant: box.Tenant}, box.ID, found.ID, wire.TerminalSize{Cols: int(size.GetCols()), Rows: int(size.GetRows())}); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&envd.UpdateResponse{}), nil
}

// SendSignal sends a signal to a process.
func (p processes) SendSignal(ctx context.Context, r *connect.Request[envd.SendSignalRequest]) (*connect.Response[envd.SendSignalResponse], error) {
	names := map[envd.Signal]string{envd.Signal_SIGNAL_SIGKILL: "SIGKILL", envd.Signal_SIGNAL_SIGTERM: "SIGTERM"}
	name, ok := names[r.Msg.GetSignal()]
	if !ok {
		return nil, refusef(connect.CodeUnimplemented, fmt.Sprintf("signal %d cannot be sent: it is SIGKILL or SIGTERM", r.Msg.GetSignal()))
	}
	found, err := p.find(ctx, r.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	box := boxOf(ctx)
	_, err = p.Service.SignalProcess(ctx, service.Call{Tenant: box.Tenant}, box.ID, found.ID, wire.SignalRequest{Signal: name})
	if farm.CodeOf(err) == farm.CodeConflict { // it has just ended
		err = farm.NotFoundf("%s", farm.MessageOf(err))
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.SendSignalResponse{}), nil
}

// SendInput writes to the input of a process.
func (p processes) SendInput(ctx context.Context, r *connect.Request[envd.SendInputRequest]) (*connect.Response[envd.SendInputResponse], error) {
	found, err := p.find(ctx, r.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if err := p.write(ctx, found.ID, bytesOf(r.Msg.GetInput()), false); err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.SendInputResponse{}), nil
}

// bytesOf are the bytes of an input. A terminal and a pipe take the same.
func bytesOf(in *envd.ProcessInput) []byte {
	if typed := in.GetPty(); typed != nil {
		return typed
	}
	return in.GetStdin()
}

// write writes to the input of a process, and ends it then if end says so.
func (p processes) write(ctx context.Context, id string, data []byte, end bool) error {
	box := boxOf(ctx)
	_, err := p.Service.WriteProcess(ctx, box.Tenant, box.ID, id, bytes.NewReader(data), end)
	if farm.CodeOf(err) == farm.CodeConflict { // it has no input, or does not read it
		return refusef(connect.CodeInternal, farm.MessageOf(err))
	}
	return err
}

// CloseStdin ends the input of a process.
func (p processes) CloseStdin(ctx context.Context, r *connect.Request[envd.CloseStdinRequest]) (*connect.Response[envd.CloseStdinResponse], error) {
	found, err := p.find(ctx, r.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if err := p.write(ctx, found.ID, nil, true); err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.CloseStdinResponse{}), nil
}

// StreamInput writes to the input of a process as the messages come, of which each callsPerRequest count as one more request. Its end is the end of the
// stream, not of the input.
func (p processes) StreamInput(ctx context.Context, in *connect.ClientStream[envd.StreamInputRequest]) (*connect.Response[envd.StreamInputResponse], error) {
	hold := budget.Lasting(ctx)
	if err := hold.Add(ctx, maxStreamed); err != nil {
		return nil, err
	}
	defer hold.Release()
	id := ""
	for messages := 0; in.Receive(); messages++ {
		if messages > 0 && messages%callsPerRequest == 0 {
			if _, err := p.Gate.More(ctx, boxOf(ctx).Tenant, 1); err != nil {
				return nil, err
			}
		}
		message := in.Msg()
		if selector := message.GetStart().GetProcess(); selector != nil {
			if id != "" {
				return nil, refusef(connect.CodeInvalidArgument, "the first message names the process, and no other")
			}
			found, err := p.find(ctx, selector, false)
			if err != nil {
				return nil, err
			}
			id = found.ID
		}
		data := bytesOf(message.GetData().GetInput())
		switch {
		case len(data) == 0:
		case id == "":
			return nil, refusef(connect.CodeInvalidArgument, "the first message names the process")
		default:
			if err := p.write(ctx, id, data, false); err != nil {
				return nil, err
			}
		}
	}
	if err := in.Err(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return connect.NewResponse(&envd.StreamInputResponse{}), nil
}
