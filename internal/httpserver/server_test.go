package httpserver_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/httpserver"
)

func config(handler http.HandlerFunc) httpserver.Config {
	return httpserver.Config{
		Name: "test", Listen: "127.0.0.1:0", HTTP: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute},
		StopTimeout: time.Minute, Log: slog.New(slog.DiscardHandler),
	}
}

func get(ctx context.Context, addr string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr, nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	s := httpserver.New(config(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	if s.Addr() != "" {
		t.Errorf("Addr before Start = %q", s.Addr())
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatalf("Start: %v", err)
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("a second Start = nil, want an error")
	}
	if got, err := get(t.Context(), s.Addr()); err != nil || got != "here" {
		t.Errorf("GET = %q, %v", got, err)
	}
	taken := config(nil)
	taken.Listen = s.Addr()
	if err := httpserver.New(taken).Start(t.Context()); err == nil || !strings.Contains(err.Error(), "start test") {
		t.Errorf("Start at a taken address = %v, want an error that names the server", err)
	}
	s.Stop()
	s.Stop()
	if _, err := get(t.Context(), s.Addr()); err == nil {
		t.Error("GET after Stop = nil, want an error")
	}
}

func TestWithoutAnAddressNothingListens(t *testing.T) {
	t.Parallel()
	cfg := config(nil)
	cfg.Listen = ""
	s := httpserver.New(cfg)
	if err := s.Start(t.Context()); err != nil || s.Addr() != "" {
		t.Errorf("Start = %v, listens on %q", err, s.Addr())
	}
	s.Stop()
	if err := s.Start(t.Context()); err == nil {
		t.Error("Start after Stop = nil, want an error")
	}
}

// Stop waits for requests that run, or cuts them off after its time.
func TestStopEndsRequests(t *testing.T) {
	t.Parallel()
	for _, inTime := range []bool{true, false} {
		running, release := make(chan struct{}), make(chan struct{})
		cfg := config(func(w http.ResponseWriter, _ *http.Request) {
			close(running)
			<-release
			_, _ = io.WriteString(w, "done")
		})
		if !inTime {
			cfg.StopTimeout = 0
		}
		s := httpserver.New(cfg)
		if err := s.Start(t.Context()); err != nil {
			t.Fatalf("Start: %v", err)
		}
		got := make(chan string, 1)
		go func() {
			text, _ := get(t.Context(), s.Addr())
			got <- text
		}()
		<-running
		stopped := make(chan struct{})
		go func() { s.Stop(); close(stopped) }()
		if inTime {
			close(release)
			<-stopped
			if text := <-got; text != "done" {
				t.Errorf("the request got %q, want its answer", text)
			}
			continue
		}
		<-stopped
		if text := <-got; text != "" {
			t.Errorf("the request got %q, want to be cut off", text)
		}
		close(release)
	}
}
