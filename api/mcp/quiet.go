package mcp

import (
	"context"
	"log/slog"
)

// quiet logs everything at level debug. mcp-go logs an error when a caller disconnects, which needs no action of an operator.
type quiet struct{ handler slog.Handler }

func quietly(l *slog.Logger) *slog.Logger { return slog.New(quiet{l.Handler()}) }

// Enabled reports whether debug is logged.
func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.handler.Enabled(ctx, slog.LevelDebug)
}

// Handle logs a record.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.handler.Handle(ctx, r)
}

// WithAttrs gives a handler with attributes.
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.handler.WithAttrs(attrs)} }

// WithGroup gives a handler with a group.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.handler.WithGroup(name)} }
