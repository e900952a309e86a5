package engine

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func frame(kind byte, text string) string {
	header := make([]byte, headerBytes)
	header[0] = kind
	binary.BigEndian.PutUint32(header[4:], uint32(len(text))) //nolint:gosec // short texts
	return string(header) + text
}

func TestStreamTakesFramesApart(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("e", 3*stderrMax)
	for name, c := range map[string]struct {
		in, want, stderr string
		err              error
	}{
		"Plain":         {in: frame(1, "abc") + frame(1, "def"), want: "abcdef", err: nil},
		"EmptyFrame":    {in: frame(1, "") + frame(1, "x"), want: "x"},
		"StderrBetween": {in: frame(1, "a") + frame(2, "oops") + frame(1, "b"), want: "ab", stderr: "oops", err: io.EOF},
		"StderrBounded": {in: frame(2, long) + frame(2, long) + frame(1, "b"), want: "b", stderr: long[:stderrMax], err: io.EOF},
		"CutInPayload":  {in: frame(1, "abcdef")[:11], want: "abc", err: io.ErrUnexpectedEOF},
		"CutInHeader":   {in: frame(1, "abc") + "\x01\x00", want: "abc", err: io.ErrUnexpectedEOF},
		"UnknownStream": {in: frame(9, "abc"), want: ""},
	} {
		s := &stream{r: bufio.NewReader(iotest.OneByteReader(strings.NewReader(c.in)))}
		got, err := io.ReadAll(s)
		testbed.Diff(t, name, c.want, string(got))
		if c.err != nil && !errors.Is(err, c.err) || (c.err == nil && name != "UnknownStream" && err != nil) || (name == "UnknownStream" && err == nil) {
			t.Errorf("%s: error %v, want %v", name, err, c.err)
		}
		testbed.Check(t, c.stderr == "" || err != nil && strings.Contains(err.Error(), c.stderr), "%s: error %.80v lacks stderr", name, err)
		testbed.Check(t, len(s.stderr) <= stderrMax, "%s: %d bytes of stderr kept", name, len(s.stderr))
	}
}

func TestFollowTellsStepsAndFailure(t *testing.T) {
	t.Parallel()
	body := `{"stream":"Step 1/4 : FROM base\n"}{"stream":"Step 2/4 : RUN false\n"}{"stream":"first\n\u001b[91m\u001b[0m\n\u001b[91msecond\u001b[0m\n"}` +
		`{"errorDetail":{"code":1,"message":"The command returned a non-zero code: 1"},"error":"The command returned a non-zero code: 1"}`
	var progress []farm.Progress
	err := follow(io.NopCloser(strings.NewReader(body)), nil, func(p farm.Progress) { progress = append(progress, p) })
	if err == nil || !strings.Contains(err.Error(), "non-zero code") || !strings.Contains(err.Error(), "second") {
		t.Errorf("error %v lacks the message or the last lines", err)
	}
	testbed.Check(t, len(progress) == 4 && progress[3] == (farm.Progress{Message: "second", Done: 1, Total: 4}), "progress %+v", progress)
	if err := follow(io.NopCloser(strings.NewReader(`{"status":"Pulling","id":"a"}`)), nil, nil); err != nil {
		t.Errorf("good stream without a listener: %v", err)
	}
	err = follow(io.NopCloser(strings.NewReader(`{"status":`)), nil, nil)
	testbed.Check(t, err != nil, "a truncated stream returned no error")
}

func TestFollowerBoundsLines(t *testing.T) {
	t.Parallel()
	var f follower
	for range 3 * tailLines {
		f.take(jsonmessage.JSONMessage{Stream: strings.Repeat("x", 2*lineMax)}, func(p farm.Progress) {
			testbed.Check(t, len(p.Message) <= progressMax, "message of %d bytes", len(p.Message))
		})
	}
	testbed.Check(t, len(f.tail) == tailLines && len(f.tail[0]) == lineMax, "%d lines of %d bytes kept", len(f.tail), len(f.tail[0]))
}

func TestAgentTarHoldsOneExecutable(t *testing.T) {
	t.Parallel()
	archive := agentTar([]farm.AgentProgram{{Name: "agent", Data: []byte("binary")}}, Execute)
	defer func() { _ = archive.Close() }()
	r := tar.NewReader(archive)
	h, err := r.Next()
	testbed.Require(t, err == nil && h.Name == "volume/" && h.Mode == 0o111 && h.Typeflag == tar.TypeDir, "first member %+v, error %v", h, err)
	access, ok := RootAccess(h)
	testbed.Check(t, access == Execute && ok, "access %d, %v", access, ok)
	h, err = r.Next()
	testbed.Require(t, err == nil && h.Name == "volume/agent" && h.Mode == 0o111 && h.Typeflag == tar.TypeReg, "second member %+v, error %v", h, err)
	data, err := io.ReadAll(r)
	testbed.Check(t, err == nil && string(data) == "binary", "content %q, error %v", data, err)
	_, err = r.Next()
	testbed.Check(t, errors.Is(err, io.EOF), "after the agent: %v, want the end", err)
}

// A sandbox with little CPU time that spins outlives its kill for a while, and its close failed for that.
func TestRemoveWaitsForAKilledContainer(t *testing.T) {
	t.Parallel()
	const (
		old = "Could not kill running container c0ffee, cannot remove - container c0ffee PID 7 is zombie and can not be killed. Use the --init option when " +
			"creating containers to run an init inside the container that forwards signals and reaps processes"
		zombie = "cannot remove container \"c0ffee\": could not kill container: container c0ffee PID 7 is zombie and can not be killed. Use the --init option"
		silent = "cannot remove container \"c0ffee\": could not kill container: tried to kill container, but did not receive an exit event"
		taken  = "removal of container c0ffee is already in progress"
	)
	type answer struct {
		status int
		text   string
	}
	for name, c := range map[string]struct {
		answers []answer // the last one is repeated
		calls   int
		code    farm.Code
	}{
		"Removed":       {[]answer{{http.StatusNoContent, ""}}, 1, ""},
		"Gone":          {[]answer{{http.StatusNotFound, "no such container"}}, 1, ""},
		"Zombie":        {[]answer{{http.StatusInternalServerError, old}, {http.StatusInternalServerError, zombie}, {http.StatusNoContent, ""}}, 3, ""},
		"NoExitEvent":   {[]answer{{http.StatusInternalServerError, silent}, {http.StatusNoContent, ""}}, 2, ""},
		"AnotherCaller": {[]answer{{http.StatusConflict, taken}, {http.StatusConflict, taken}, {http.StatusNotFound, "no such container"}}, 3, ""},
		"AnotherFailed": {[]answer{{http.StatusConflict, taken}, {http.StatusInternalServerError, zombie}, {http.StatusNoContent, ""}}, 3, ""},
		"Broken":        {[]answer{{http.StatusInternalServerError, "driver \"overlay2\" failed to remove root filesystem"}}, 1, farm.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			e := remover(t, func(w http.ResponseWriter) {
				a := c.answers[min(calls, len(c.answers)-1)]
				calls++
				w.WriteHeader(a.status)
				if a.status != http.StatusNoContent {
					_ = json.NewEncoder(w).Encode(map[string]string{"message": a.text})
				}
			})
			if err := e.Remove(t.Context(), "c0ffee"); (err == nil) != (c.code == "") || err != nil && farm.CodeOf(err) != c.code || calls != c.calls {
				t.Errorf("%d calls, want %d: %v", calls, c.calls, err)
			}
		})
	}
}

// A container that never ends is killed again until the caller gives up, who learns what the engine said.
func TestRemoveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	e := remover(t, func(w http.ResponseWriter) {
		if calls++; calls == 3 {
			cancel()
		}
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"message":"could not kill container: it is zombie"}`)
	})
	err := e.Remove(ctx, "c0ffee")
	testbed.Check(t, errors.Is(err, context.Canceled) && strings.Contains(err.Error(), "it is zombie") && calls == 3, "%d calls: %v", calls, err)
}

// remover is an Engine whose removals are answered by answer.
func remover(t *testing.T, answer func(http.ResponseWriter)) *Engine {
	t.Helper()
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodDelete {
			answer(w)
		}
	}))
	t.Cleanup(fake.Close)
	e, err := New(Config{Host: "tcp://" + strings.TrimPrefix(fake.URL, "http://"), Namespace: "farm"})
	testbed.Must(t, err)
	t.Cleanup(func() { _ = e.Close() })
	return e
}
