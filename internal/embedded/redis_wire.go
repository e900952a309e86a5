package embedded

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

// commandTimeout bounds one inline command: the server is on this machine.
const commandTimeout = 2 * time.Second

// ping checks whether the server is ready; a server that is still loading its data is not.
func ping(ctx context.Context, addr string) error {
	answer, err := command(ctx, addr, "PING")
	if err != nil {
		return err
	}
	if answer != "+PONG" {
		return fmt.Errorf("ping Redis: it answered %q", answer)
	}
	return nil
}

// shutdown sends SHUTDOWN. A server that obeys closes the connection without a reply.
func shutdown(addr string) error {
	answer, err := command(context.Background(), addr, "SHUTDOWN") //nolint:forbidigo // Close has no context; command bounds itself
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("shut Redis down: it answered %q", answer)
}

func command(ctx context.Context, addr, text string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", addr)
	if err != nil {
		return "", fmt.Errorf("dial Redis: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(commandTimeout)); err != nil {
		return "", fmt.Errorf("bound Redis command: %w", err)
	}
	if _, err := io.WriteString(conn, text+"\r\n"); err != nil {
		return "", fmt.Errorf("write Redis command: %w", err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read Redis answer: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

// lineLog logs the output of a child, and keeps its last lines for the error when it ends.
type lineLog struct {
	ctx context.Context // an io.Writer gets none
	log *slog.Logger

	mu   sync.Mutex
	rest []byte
	last []string
}

// keptLines is how many lines of a child are kept; maxLine bounds a line without a newline.
const (
	keptLines = 5
	maxLine   = 8 << 10
)

func newLineLog(ctx context.Context, log *slog.Logger) *lineLog { return &lineLog{ctx: ctx, log: log} }

// Write logs complete lines; it never fails.
func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			break
		}
		l.rest = rest
		l.line(strings.TrimSpace(string(line)))
	}
	if len(l.rest) > maxLine {
		l.rest = nil
	}
	return len(p), nil
}

func (l *lineLog) line(text string) {
	if text == "" {
		return
	}
	l.log.DebugContext(l.ctx, "redis-server says", slog.String("line", text))
	l.last = append(l.last, text)
	if len(l.last) > keptLines {
		l.last = l.last[1:]
	}
}

func (l *lineLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last, " | ")
}
