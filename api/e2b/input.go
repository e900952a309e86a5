package e2b

import (
	"bytes"
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	"github.com/sandfarm/sandfarm/api/e2b/envd"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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

// StreamInput writes to the input of a process as the messages come. Its end is the end of the stream, not of the input.
func (p processes) StreamInput(ctx context.Context, in *connect.ClientStream[envd.StreamInputRequest]) (*connect.Response[envd.StreamInputResponse], error) {
	hold := budget.Lasting(ctx)
	if err := hold.Add(ctx, maxStreamed); err != nil {
		return nil, err
	}
	defer hold.Release()
	id := ""
	for in.Receive() {
		message := in.Msg()
		if selector := message.GetStart().GetProcess(); selector != nil {
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
