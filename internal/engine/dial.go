package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// dialTimeout covers the start of the process: usually 50 to 80 ms, seconds during a burst.
const dialTimeout = 30 * time.Second

// Dial runs a command in a container and returns its stdin and stdout as one stream. Close ends the stream, and the command reads the end
// of its stdin. When the command exits, Read returns an error with its stderr.
// User is a name or "uid:gid"; empty: the container's.
func (e *Engine) Dial(ctx context.Context, id string, cmd []string, user string) (io.ReadWriteCloser, error) {
	var s *stream
	err := e.call(ctx, dialTimeout, "exec in container", func(ctx context.Context) error {
		made, err := e.cli.ContainerExecCreate(ctx, id, execOptions(user, cmd))
		if err != nil {
			return err
		}
		s, err = e.attach(ctx, made.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// execOptions describe the command of Dial.
func execOptions(user string, cmd []string) container.ExecOptions {
	return container.ExecOptions{User: user, Cmd: cmd, AttachStdin: true, AttachStdout: true, AttachStderr: true}
}

// attach starts an exec and takes its connection over. The Docker client's own call has no timeout, so a stuck engine would block the
// caller forever.
func (e *Engine) attach(ctx context.Context, execID string) (_ *stream, err error) {
	body, err := json.Marshal(container.ExecStartOptions{})
	if err != nil {
		return nil, fmt.Errorf("pack request: %w", err)
	}
	url := "http://engine/v" + e.cli.ClientVersion() + "/exec/" + execID + "/start"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "tcp")

	conn, err := e.cli.Dialer()(ctx)
	if err != nil {
		return nil, e.unavailable(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			err = errors.Join(err, conn.Close())
		}
	}()
	if err := req.Write(conn); err != nil {
		return nil, fmt.Errorf("ask for stream: %w", err)
	}
	r := bufio.NewReaderSize(conn, streamBuffer)
	resp, err := http.ReadResponse(r, req) //nolint:bodyclose // the body is the connection, which the stream or the defer above closes
	if err != nil {
		return nil, fmt.Errorf("await stream: %w", err)
	}
	// The body of a switched connection is the stream itself and is not read through resp.
	if resp.StatusCode != http.StatusSwitchingProtocols && resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return nil, execError(resp.StatusCode, text)
	}
	return &stream{conn: conn, r: r}, nil
}

// execError turns the engine's answer to an exec into an error.
func execError(status int, text []byte) error {
	var answer struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &answer) != nil || answer.Message == "" {
		answer.Message = string(bytes.TrimSpace(text))
	}
	code := farm.CodeInternal
	switch status {
	case http.StatusNotFound:
		code = farm.CodeNotFound
	case http.StatusConflict:
		code = farm.CodeConflict
	}
	return farm.Errorf(code, "the engine refused the exec with status %d: %s", status, answer.Message)
}
