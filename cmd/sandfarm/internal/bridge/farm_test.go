package bridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/bridge"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// remote returns the tools' farm of a REST API.
func remote(t *testing.T, api http.HandlerFunc) (mcp.Farm, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	c, err := client.New(server.URL)
	testbed.Must(t, err)
	return bridge.NewFarm(c), server
}

func answer(t *testing.T, w http.ResponseWriter, status int, body any) {
	t.Helper()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		t.Error(err)
	}
}

func TestErrorsKeepTheFarmsCodeAndSentence(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		status  int
		problem wire.Problem
		retry   string
		code    farm.Code
		message string
	}{
		"NotFound":     {404, wire.Problem{Code: "not_found", Detail: "There is no sandbox sbx_1."}, "", farm.CodeNotFound, "There is no sandbox sbx_1."},
		"Invalid":      {422, wire.Problem{Code: "invalid", Detail: "code is empty"}, "", farm.CodeInvalid, "code is empty"},
		"Conflict":     {409, wire.Problem{Code: "conflict", Detail: "The sandbox is closed."}, "", farm.CodeConflict, "The sandbox is closed."},
		"Exhausted":    {429, wire.Problem{Code: "exhausted", Detail: "Too many wait."}, "7", farm.CodeExhausted, "Too many wait. Try again in 7s."},
		"Unauthorized": {401, wire.Problem{Code: "unauthorized", Detail: "A key is needed."}, "", farm.CodeUnauthorized, "A key is needed. Ask the user to put a key of the farm into SANDFARM_API_KEY where this server is configured."},
		"Internal":     {500, wire.Problem{Code: "internal", Detail: "Oops.", RequestID: "req_9"}, "", farm.CodeUnavailable, "The farm failed: Oops. Its log says more under the request id req_9."},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := remote(t, func(w http.ResponseWriter, _ *http.Request) {
				if test.retry != "" {
					w.Header().Set("Retry-After", test.retry)
				}
				answer(t, w, test.status, test.problem)
			})
			_, err := f.Execute(t.Context(), "sbx_1", wire.ExecuteRequest{Code: "1"}, 0)
			if farm.CodeOf(err) != test.code || farm.MessageOf(err) != test.message {
				t.Errorf("%s %q", farm.CodeOf(err), farm.MessageOf(err))
			}
		})
	}
}

func TestAFarmThatIsDownSaysHowToStartIt(t *testing.T) {
	t.Parallel()
	f, server := remote(t, nil)
	server.Close()
	ways := map[string]func(context.Context) error{
		"Read":   func(ctx context.Context) error { _, err := f.Sandboxes(ctx); return err },
		"Submit": func(ctx context.Context) error { _, err := f.CreateSandbox(ctx, wire.CreateRequest{}, 0); return err },
		"Write": func(ctx context.Context) error {
			_, err := f.WriteFile(ctx, "sbx_1", "a", strings.NewReader("x"), 1)
			return err
		},
	}
	for name, ask := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := ask(t.Context())
			if m := farm.MessageOf(err); farm.CodeOf(err) != farm.CodeUnavailable || !strings.Contains(m, "sandfarm up") || !strings.Contains(m, server.URL) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestEventsOfAFarmThatIsDown(t *testing.T) {
	t.Parallel()
	f, _ := remote(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(t, w, http.StatusNotFound, wire.Problem{Code: "not_found", Detail: "There is no job job_1."})
	})
	n := 0
	for _, err := range f.Events(t.Context(), "job_1") {
		n++
		if farm.CodeOf(err) != farm.CodeNotFound {
			t.Errorf("%v", err)
		}
	}
	testbed.Diff(t, "events", 1, n)
}

func TestACallThatWasCanceledSaysSo(t *testing.T) {
	t.Parallel()
	f, _ := remote(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Job(ctx, "job_1", 0); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestSandboxesListsOpenOnes(t *testing.T) {
	t.Parallel()
	var states string
	f, _ := remote(t, func(w http.ResponseWriter, r *http.Request) {
		states = r.URL.Query().Get("state")
		answer(t, w, http.StatusOK, wire.List[wire.Sandbox]{Items: []wire.Sandbox{}})
	})
	got, err := f.Sandboxes(t.Context())
	if err != nil || got == nil || states != "queued,starting,ready,busy,hibernated" {
		t.Errorf("%v, %v, asked for %q", got, err, states)
	}
}

func TestRestartNamesTheKernel(t *testing.T) {
	t.Parallel()
	var sent []string
	f, _ := remote(t, func(w http.ResponseWriter, r *http.Request) {
		var body wire.ControlRequest
		_ = json.NewDecoder(r.Body).Decode(&body)
		sent = append(sent, body.Context)
		answer(t, w, http.StatusOK, wire.Job{ID: "job_1", State: "completed"})
	})
	for _, kernel := range []string{"", "b"} {
		_, err := f.Restart(t.Context(), "sbx_1", kernel, 0)
		testbed.Must(t, err)
	}
	testbed.Diff(t, "", []string{"", "b"}, sent)
}

func TestReadFileHoldsToItsLimit(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		content string
		chunked bool // no Content-Length
		whole   bool
	}{
		"Empty":          {"", false, true},
		"Below":          {"1234", false, true},
		"At":             {"12345", false, true},
		"Above":          {"123456", false, false},
		"AtUnknown":      {"12345", true, true},
		"AboveUnknown":   {"123456", true, false},
		"EmptyOfUnknown": {"", true, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := remote(t, func(w http.ResponseWriter, r *http.Request) {
				testbed.Diff(t, "asked for", "/v1/sandboxes/sbx_1/files/deep/a.txt", r.URL.Path)
				if test.chunked {
					_ = http.NewResponseController(w).Flush()
				}
				_, _ = w.Write([]byte(test.content))
			})
			got, err := f.ReadFile(t.Context(), "sbx_1", "/workspace/deep/./a.txt", 5)
			if err != nil || got.Entry.Path != "deep/a.txt" || (got.Content != nil) != test.whole || test.whole && string(got.Content) != test.content {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestPathsOutsideTheWorkspaceAreNotSent(t *testing.T) {
	t.Parallel()
	f, _ := remote(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked %s %s", r.Method, r.URL) })
	for _, path := range []string{"", "..", "../jobs", "a/../../b", "/etc/passwd", "a/"} {
		_, err := f.ReadFile(t.Context(), "sbx_1", path, 5)
		_, err2 := f.LinkFile(t.Context(), "sbx_1", path)
		_, err3 := f.WriteFile(t.Context(), "sbx_1", path, strings.NewReader(""), 0)
		for _, err := range []error{err, err2, err3} {
			if farm.CodeOf(err) != farm.CodeInvalid {
				t.Errorf("%q: %v", path, err)
			}
		}
	}
}
