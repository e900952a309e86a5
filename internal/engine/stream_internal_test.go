package engine

import (
	"archive/tar"
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/sandfarm/sandfarm/internal/farm"
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
		if string(got) != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if c.err != nil && !errors.Is(err, c.err) || (c.err == nil && name != "UnknownStream" && err != nil) || (name == "UnknownStream" && err == nil) {
			t.Errorf("%s: error %v, want %v", name, err, c.err)
		}
		if c.stderr != "" && (err == nil || !strings.Contains(err.Error(), c.stderr)) {
			t.Errorf("%s: error %.80v lacks stderr", name, err)
		}
		if len(s.stderr) > stderrMax {
			t.Errorf("%s: %d bytes of stderr kept", name, len(s.stderr))
		}
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
	if len(progress) != 4 || progress[3] != (farm.Progress{Message: "second", Done: 1, Total: 4}) {
		t.Errorf("progress %+v", progress)
	}
	if err := follow(io.NopCloser(strings.NewReader(`{"status":"Pulling","id":"a"}`)), nil, nil); err != nil {
		t.Errorf("good stream without a listener: %v", err)
	}
	if err := follow(io.NopCloser(strings.NewReader(`{"status":`)), nil, nil); err == nil {
		t.Error("a truncated stream returned no error")
	}
}

func TestFollowerBoundsLines(t *testing.T) {
	t.Parallel()
	var f follower
	for range 3 * tailLines {
		f.take(jsonmessage.JSONMessage{Stream: strings.Repeat("x", 2*lineMax)}, func(p farm.Progress) {
			if len(p.Message) > progressMax {
				t.Errorf("message of %d bytes", len(p.Message))
			}
		})
	}
	if len(f.tail) != tailLines || len(f.tail[0]) != lineMax {
		t.Errorf("%d lines of %d bytes kept", len(f.tail), len(f.tail[0]))
	}
}

func TestAgentTarHoldsOneExecutable(t *testing.T) {
	t.Parallel()
	archive := agentTar([]farm.AgentProgram{{Name: "agent", Data: []byte("binary")}}, Execute)
	defer func() { _ = archive.Close() }()
	r := tar.NewReader(archive)
	h, err := r.Next()
	if err != nil || h.Name != "volume/" || h.Mode != 0o111 || h.Typeflag != tar.TypeDir {
		t.Fatalf("first member %+v, error %v", h, err)
	}
	if access, ok := RootAccess(h); access != Execute || !ok {
		t.Errorf("access %d, %v", access, ok)
	}
	h, err = r.Next()
	if err != nil || h.Name != "volume/agent" || h.Mode != 0o111 || h.Typeflag != tar.TypeReg {
		t.Fatalf("second member %+v, error %v", h, err)
	}
	if data, err := io.ReadAll(r); err != nil || string(data) != "binary" {
		t.Errorf("content %q, error %v", data, err)
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the agent: %v, want the end", err)
	}
}
