package e2b

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/e2b/envd"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestPlacesOfPaths(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]struct{ real, shown string }{
		"":                     {"/workspace", "/home/user"},
		".":                    {"/workspace", "/home/user"},
		"a/b":                  {"/workspace/a/b", "/home/user/a/b"},
		"./a//b/":              {"/workspace/a/b", "/home/user/a/b"},
		"../other":             {"/home/other", "/home/other"},
		"/home/user":           {"/workspace", "/home/user"},
		"/home/user/a":         {"/workspace/a", "/home/user/a"},
		"/home/user/../user/a": {"/workspace/a", "/home/user/a"},
		"/home/users":          {"/home/users", "/home/users"},
		"/workspace/a":         {"/workspace/a", "/workspace/a"},
		"/tmp/a":               {"/tmp/a", "/tmp/a"},
		"~":                    {"/workspace", "/home/user"},
		"~/a":                  {"/workspace/a", "/home/user/a"},
		"~a":                   {"/workspace/~a", "/home/user/~a"},
	} {
		at := placeOf(given)
		if shown := at.shown(at.real); at.real != want.real || shown != want.shown {
			t.Errorf("%q is %q, shown as %q", given, at.real, shown)
		}
	}
}

// A context keeps no path as it was written, so its directory is shown where the SDKs have the workspace.
func TestPathsOfContexts(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]struct{ real, shown string }{
		"": {"/workspace", "/home/user"}, "a": {"/workspace/a", "/home/user/a"}, "/workspace/a": {"/workspace/a", "/home/user/a"},
		"/home/user/a/": {"/workspace/a", "/home/user/a"}, "/home/users": {"/home/users", "/home/users"}, "/tmp/../x": {"/x", "/x"}, "~": {"/workspace", "/home/user"},
	} {
		if real := RealPath(given); real != want.real || ShownPath(real) != want.shown {
			t.Errorf("%q is %q, shown as %q", given, real, ShownPath(real))
		}
	}
}

// Shells believe PWD only if it is where they are, so a caller's own value does no harm and stays.
func TestPWDAndHomeAreWhatCallersSee(t *testing.T) {
	t.Parallel()
	for real, want := range map[string]string{"/workspace": "/home/user", "/workspace/a": "/home/user/a", "/tmp": "/tmp"} {
		if got := Environment(nil, real); len(got) != 2 || got["PWD"] != want || got["HOME"] != "/home/user" {
			t.Errorf("%s: %v", real, got)
		}
	}
	given := map[string]string{"A": "1", "PWD": "/own", "HOME": "/mine"}
	if got := Environment(given, "/workspace"); len(got) != 3 || got["PWD"] != "/own" || got["HOME"] != "/mine" || got["A"] != "1" {
		t.Errorf("%v", got)
	}
	if got := Environment(map[string]string{"A": "1"}, "/tmp"); got["PWD"] != "/tmp" || got["A"] != "1" {
		t.Errorf("%v", got)
	}
}

func TestIDsBothWays(t *testing.T) {
	t.Parallel()
	id := farm.NewID(farm.SandboxPrefix)
	shown := ShownID(id)
	if SandboxID(shown) != id || SandboxID(id) != id || len(shown) > 57 {
		t.Errorf("%s is %s, and back %s", id, shown, SandboxID(shown))
	}
	for _, other := range []string{"", "sbx", "job_1", "i1234"} {
		if farm.ValidID(farm.SandboxPrefix, SandboxID(other)) {
			t.Errorf("%q names a sandbox", other)
		}
	}
}

func TestIDsOfWatchersBothWays(t *testing.T) {
	t.Parallel()
	for _, want := range []watcher{
		{farm.NewID(farm.WatchPrefix), placeOf("a/é"), true},
		{farm.NewID(farm.WatchPrefix), placeOf("/tmp"), false},
	} {
		if got, err := watcherOf(want.String()); err != nil || got != want {
			t.Errorf("%s is %+v, %v", want, got, err)
		}
	}
	for _, bad := range []string{"", ".", "wat_x.--", farm.NewID(farm.WatchPrefix), farm.NewID(farm.WatchPrefix) + ".-", farm.NewID(farm.WatchPrefix) + ".--!"} {
		if got, err := watcherOf(bad); farm.CodeOf(err) != farm.CodeNotFound {
			t.Errorf("%q is %+v, %v", bad, got, err)
		}
	}
}

// The names of parts have directories, which the standard library leaves out.
func TestNamesOfParts(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		`form-data; name="file"; filename="/home/user/a/b.txt"`: "/home/user/a/b.txt",
		`form-data; name="file"; filename="a \"b\""`:            `a "b"`,
		`form-data; name="file"; filename*=UTF-8''%C3%A9`:       "é",
		`form-data; name="file"`:                                "",
		``:                                                      "",
	} {
		if got := filename(header); got != want {
			t.Errorf("%s: %q", header, got)
		}
	}
}

func TestUploadsAreBounded(t *testing.T) {
	t.Parallel()
	for _, files := range []int{maxUploads - 1, maxUploads, maxUploads + 1} {
		body := &bytes.Buffer{}
		form := multipart.NewWriter(body)
		for n := range files {
			if _, err := form.CreateFormFile("file", strconv.Itoa(n)); err != nil {
				t.Fatal(err)
			}
		}
		_ = form.Close()
		var written []string
		err := parts(rest.NewParts(t.Context(), body, form.Boundary()), "", func(to string, _ io.Reader, _ int64) error {
			written = append(written, to)
			return nil
		})
		if (err != nil) != (files > maxUploads) || len(written) != min(files, maxUploads) || written[len(written)-1] != strconv.Itoa(min(files, maxUploads)-1) {
			t.Errorf("%d files: %d are written, %v", files, len(written), err)
		}
	}
}

// The answers of a sandbox about files that links lead to were kept whole until the list was sent, and charged to nobody: up to 64 KiB of metadata each.
func TestALookKeepsNoMetadata(t *testing.T) {
	t.Parallel()
	ctx, hold := budget.New(64<<20).With(t.Context(), "acme", time.Minute)
	t.Cleanup(hold.Release)
	l := newLook(ctx)
	target := strings.Repeat("t", farm.MaxPathBytes)
	for n := range maxCalls {
		l.keep(ctx, fmt.Sprint("/", n), wire.FSEntry{Path: fmt.Sprint("/", n), Target: &target, Metadata: map[string]string{"k": "v"}}, nil)
	}
	there := l.known["/7"]
	testbed.Check(t, l.over == nil && len(l.known) == maxCalls && there.metadata && there.entry.Metadata == nil, "%v, %d are known, as %+v", l.over, len(l.known), there)
	if held, want := budget.Held(ctx), int64(maxCalls*len(target)); held < want {
		t.Errorf("%d bytes are charged for %d", held, want)
	}
	l.next(ctx)
	if held := budget.Held(ctx); held != 0 || len(l.known) != 0 {
		t.Errorf("then %d bytes are charged, and %d files known", held, len(l.known))
	}
}

type received struct{ connect.StreamingHandlerConn }

func (received) Receive(any) error  { return nil }
func (received) Spec() connect.Spec { return connect.Spec{} }

// A large message is decoded on a core of its tenant's, which is given back before the call begins: it may last.
func TestLargeMessagesHaveACoreUntilTheirCallBegins(t *testing.T) {
	t.Parallel()
	memory := budget.New(0)
	for size, want := range map[int]bool{budget.SmallBytes - 64: false, budget.SmallBytes - 63: true} { // its value counts as 64 bytes
		c, _ := gin.CreateTestContext(httptest.NewRecorder())
		c.Request = httptest.NewRequestWithContext(testbed.WithoutCore(t, memory, "acme"), http.MethodPost, envd.ProcessListProcedure, strings.NewReader(strings.Repeat("?", size)))
		c.Request.Header.Set("Content-Type", "application/json")
		if err := New(Deps{MaxBody: 1 << 20}).RPC("")(c, Box{}); errors.Is(err, context.Canceled) != want {
			t.Errorf("a message of %d bytes, without a core: %v", size, err)
		}
	}
	for size, want := range map[int]bool{budget.SmallBytes - 1: false, budget.SmallBytes: false, budget.SmallBytes + 1: true} {
		_, err := io.ReadAll(onCore{io.NopCloser(strings.NewReader(strings.Repeat("?", size))), testbed.WithoutCore(t, memory, "acme")})
		testbed.Check(t, errors.Is(err, context.Canceled) == want, "a stream of %d bytes, without a core: %v", size, err)
	}

	memory = budget.New(0)
	takes := func() bool { return testbed.FreeCores(t, memory, "acme") > 0 }
	decoding := func() context.Context { // the request with the last core
		on := testbed.Abandoned(t, memory, "acme")
		testbed.Must(t, budget.TakeCore(on, budget.SmallBytes+1))
		testbed.TakeCores(t, memory, "acme")
		return on
	}
	on := decoding()
	_, err := failures{}.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
		if !takes() {
			t.Error("a call has the core of its message")
		}
		return nil, nil
	})(on, connect.NewRequest(&envd.ListRequest{}))
	if err != nil {
		t.Error(err)
	}
	on = decoding()
	err = failures{}.WrapStreamingHandler(func(_ context.Context, conn connect.StreamingHandlerConn) error {
		if takes() {
			t.Error("the message of a stream is decoded without a core")
		}
		if err := conn.Receive(nil); err != nil || !takes() {
			t.Errorf("a stream has the core of its message, %v", err)
		}
		return nil
	})(on, received{})
	if err != nil {
		t.Error(err)
	}
}

func TestEndSaysWhy(t *testing.T) {
	t.Parallel()
	killed, failed, ok := 137, 2, 0
	for want, end := range map[string]farm.ProcessEnd{
		"limit of 64 MiB.": {ExitCode: &killed, OutOfMemory: true, Reason: "limit of 64 MiB."},
		"exit status 2":    {ExitCode: &failed},
		"":                 {ExitCode: &ok},
	} {
		if got := endOf(&end); got.GetError() != want || int(got.GetExitCode()) != *end.ExitCode {
			t.Errorf("%v, want %q", got, want)
		}
	}
}

// What an entry takes in memory counts its text as often as it is there.
func TestWeightOfEntries(t *testing.T) {
	t.Parallel()
	target := strings.Repeat("t", 999)
	entry := &envd.EntryInfo{Path: "/a", SymlinkTarget: &target, Metadata: map[string]string{"key": "value"}}
	if got, want := weightOf(entry), int64(entryBytes+1001*budget.BodyWeight+8*2); got != want || weightOf(nil) != 0 {
		t.Errorf("an entry has %d bytes, want %d", got, want)
	}
}
