package blob_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// stall is short to keep the tests short; timeout is when a call that should have timed out counts as hanging.
const (
	stall   = 2 * time.Second
	timeout = time.Minute
)

func newStore(t *testing.T, cfg blob.Config) *blob.Store {
	t.Helper()
	s, err := blob.New(cfg)
	testbed.Must(t, err)
	return s
}

// listen returns a listener that is closed at the end of the test.
func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// calls returns every operation of a store.
func calls(ctx context.Context, s *blob.Store) map[string]func() error {
	return map[string]func() error{
		"Ping":         func() error { return s.Ping(ctx) },
		"EnsureBucket": func() error { return s.EnsureBucket(ctx) },
		"PutSmall": func() error {
			_, err := s.Put(ctx, "k", strings.NewReader("x"), 1, blob.PutOptions{})
			return err
		},
		"PutLarge": func() error {
			_, err := s.Put(ctx, "k", io.LimitReader(zeros{}, 20<<20), -1, blob.PutOptions{})
			return err
		},
		"Get": func() error {
			r, _, err := s.Get(ctx, "k", 0, 0)
			if err == nil {
				return r.Close()
			}
			return err
		},
		"Stat":         func() error { _, err := s.Stat(ctx, "k"); return err },
		"Delete":       func() error { return s.Delete(ctx, "k") },
		"DeleteMany":   func() error { return s.Delete(ctx, "k", "l") },
		"DeletePrefix": func() error { _, err := s.DeletePrefix(ctx, "k"); return err },
		"List":         func() error { return s.List(ctx, "", func(blob.Info) error { return nil }) },
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A put of an object that is not there yet cannot fail for that. Who takes not_found for a file of the sandbox that has vanished would leave it out.
func TestPutToAnotherServerIsUnavailable(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	_, err := newStore(t, blob.Config{Endpoint: other.URL, AccessKey: "k", SecretKey: "s", Bucket: "b", Region: "r"}).
		Put(t.Context(), "k", strings.NewReader("x"), 1, blob.PutOptions{})
	testbed.Diff(t, "code", farm.CodeUnavailable, farm.CodeOf(err))
}

// What the store has sent and a slow reader has not taken is in the kernel, and no budget counts it.
func TestTheKernelKeepsLittleOfAnObject(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	var buffers []int
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		below := reflect.ValueOf(got.Conn).Elem().FieldByName("Conn").Interface()
		buffers = append(buffers, testbed.ReceiveBuffer(t, below.(*net.TCPConn)))
	}})
	_, err := newStore(t, blob.Config{Endpoint: other.URL, AccessKey: "k", SecretKey: "s", Bucket: "bucket", Region: "r"}).Stat(ctx, "k")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "Stat = %v", err)
	testbed.Diff(t, "bytes that the kernel may keep of each connection", []int{2 * 192 << 10}, buffers)
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	refused := listen(t, "127.0.0.1:0")
	_ = refused.Close()
	silent := listen(t, "127.0.0.1:0") // the kernel accepts connections; nothing answers
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(broken.Close)
	for name, endpoint := range map[string]string{
		"Refused": "http://" + refused.Addr().String(),
		"Silent":  "http://" + silent.Addr().String(),
		"Broken":  broken.URL,
	} {
		cfg := newConfig(t, endpoint)
		cfg.StallTimeout = stall
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all sync.WaitGroup
			for what, call := range calls(t.Context(), newStore(t, cfg)) {
				all.Go(func() {
					began := time.Now()
					if err := call(); farm.CodeOf(err) != farm.CodeUnavailable {
						t.Errorf("%s = %v (code %s), want code %s", what, err, farm.CodeOf(err), farm.CodeUnavailable)
					}
					if took := time.Since(began); took > timeout {
						t.Errorf("%s took %s, want an answer sooner", what, took)
					}
				})
			}
			all.Wait()
		})
	}
}

func TestCancelledCallKeepsItsCause(t *testing.T) {
	t.Parallel()
	silent := listen(t, "127.0.0.1:0")
	cause, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for what, call := range calls(cause, newStore(t, newConfig(t, "http://"+silent.Addr().String()))) {
		if err := call(); !errors.Is(err, context.DeadlineExceeded) || farm.CodeOf(err) == farm.CodeUnavailable {
			t.Errorf("%s = %v, want the caller's own %v", what, err, context.DeadlineExceeded)
		}
	}
}

func TestStoreMadeWhileServiceWasDownWorksOnceItIsUp(t *testing.T) {
	t.Parallel()
	l := listen(t, "127.0.0.1:0")
	_ = l.Close()
	s := newStore(t, newConfig(t, "http://"+l.Addr().String()))
	if err := s.EnsureBucket(t.Context()); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Fatalf("EnsureBucket while down = %v, want code %s", err, farm.CodeUnavailable)
	}
	forward(t, listen(t, l.Addr().String()))
	testbed.Must(t, s.EnsureBucket(t.Context()))
	if _, err := s.Put(t.Context(), "k", strings.NewReader("up"), 2, blob.PutOptions{}); err != nil {
		t.Errorf("Put: %v", err)
	}
}

// forward relays connections to the embedded service.
func forward(t *testing.T, l net.Listener) {
	t.Helper()
	var all sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "http://"))
			if err != nil {
				_ = in.Close()
				continue
			}
			t.Cleanup(func() { _ = in.Close(); _ = out.Close() })
			all.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			all.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
}

// serveBody answers a GET with a body of 100 bytes, as fast as write writes it.
func serveBody(t *testing.T, write func(w http.ResponseWriter, r *http.Request)) blob.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		w.Header().Set("ETag", `"e"`)
		write(w, r)
	}))
	t.Cleanup(server.Close)
	cfg := newConfig(t, server.URL)
	cfg.StallTimeout = stall
	return cfg
}

func TestStalledDownloadEnds(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	cfg := serveBody(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ten bytes.")
		_ = http.NewResponseController(w).Flush()
		<-hang
	})
	t.Cleanup(func() { close(hang) })
	r, info, err := newStore(t, cfg).Get(t.Context(), "k", 0, 0)
	if err != nil || info.Size != 100 {
		t.Fatalf("Get = %+v, %v", info, err)
	}
	defer func() { _ = r.Close() }()
	got, err := io.ReadAll(r)
	if farm.CodeOf(err) != farm.CodeUnavailable || string(got) != "ten bytes." {
		t.Errorf("read %q, %v; want the ten bytes and code %s", got, err, farm.CodeUnavailable)
	}
}

func TestCutDownloadIsAnError(t *testing.T) {
	t.Parallel()
	cfg := serveBody(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ten bytes.")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	r, _, err := newStore(t, cfg).Get(t.Context(), "k", 0, 0)
	testbed.Must(t, err)
	defer func() { _ = r.Close() }()
	if _, err := io.ReadAll(r); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("read = %v, want code %s", err, farm.CodeUnavailable)
	}
}

func TestSlowDownloadLastsLongerThanTheStallTimeout(t *testing.T) {
	t.Parallel()
	cfg := serveBody(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 10 {
			_, _ = io.WriteString(w, "ten bytes.")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(stall / 4) // the server's pace is what is tested
		}
	})
	r, _, err := newStore(t, cfg).Get(t.Context(), "k", 0, 0)
	testbed.Must(t, err)
	defer func() { _ = r.Close() }()
	if got, err := io.ReadAll(r); err != nil || len(got) != 100 {
		t.Errorf("read %d bytes, %v; want 100", len(got), err)
	}
}

func TestSlowUploadLastsLongerThanTheStallTimeout(t *testing.T) {
	t.Parallel()
	const (
		stall = 2 * time.Second
		chunk = 32 << 10
	)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := io.CopyN(io.Discard, r.Body, chunk); err != nil {
				break
			}
			time.Sleep(stall / 12) // the server's pace is what is tested
		}
		w.Header().Set("ETag", `"e"`)
	}))
	// Small buffers, so that the client feels the server's pace.
	server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if err := conn.(*net.TCPConn).SetReadBuffer(chunk); err != nil {
			t.Errorf("SetReadBuffer: %v", err)
		}
		return ctx
	}
	server.Start()
	t.Cleanup(server.Close)
	cfg := newConfig(t, server.URL)
	cfg.StallTimeout = stall
	began := time.Now()
	_, err := newStore(t, cfg).Put(t.Context(), "k", io.LimitReader(zeros{}, 1<<20), 1<<20, blob.PutOptions{})
	testbed.Must(t, err)
	if took := time.Since(began); took < 2*stall {
		t.Errorf("Put took %s, too fast to prove anything", took)
	}
}

func TestPublicURLIsWhatLinksAreSignedFor(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, endpoint)
	l := listen(t, "127.0.0.1:0")
	forward(t, l)
	cfg.PublicURL = "http://" + l.Addr().String()
	s := newStore(t, cfg)
	testbed.Must(t, s.EnsureBucket(t.Context()))
	_, err := s.Put(t.Context(), "k", strings.NewReader("public"), 6, blob.PutOptions{})
	testbed.Must(t, err)
	link, err := s.Presign(t.Context(), "k", blob.PresignOptions{})
	if err != nil || !strings.HasPrefix(link, cfg.PublicURL+"/") {
		t.Fatalf("Presign = %q, %v; want a link to %s", link, err, cfg.PublicURL)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link, nil)
	testbed.Must(t, err)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	testbed.Must(t, err)
	defer func() { _ = resp.Body.Close() }()
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "public" {
		t.Errorf("GET = %s %q, %v; want the object", resp.Status, got, err)
	}
}

func TestNewRefusesWrongConfig(t *testing.T) {
	t.Parallel()
	good := blob.Config{Endpoint: "http://127.0.0.1:1", AccessKey: "a", SecretKey: "s"}
	if _, err := blob.New(good); err != nil {
		t.Fatalf("New(%+v): %v", good, err)
	}
	for name, spoil := range map[string]func(*blob.Config){
		"NoEndpoint":  func(c *blob.Config) { c.Endpoint = "" },
		"NoScheme":    func(c *blob.Config) { c.Endpoint = "127.0.0.1:1" },
		"Path":        func(c *blob.Config) { c.PublicURL = "http://host/s3" },
		"UserInURL":   func(c *blob.Config) { c.PublicURL = "http://a:b@host" },
		"NoAccessKey": func(c *blob.Config) { c.AccessKey = "" },
		"NoSecretKey": func(c *blob.Config) { c.SecretKey = "" },
		"Stall":       func(c *blob.Config) { c.StallTimeout = -1 },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := blob.New(cfg); err == nil {
			t.Errorf("New with %s = nil, want an error", name)
		}
	}
}

func Example() {
	s, err := blob.New(blob.Config{Endpoint: "http://127.0.0.1:8001", AccessKey: "key", SecretKey: "secret"})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = s.Presign(context.Background(), "jobs/1/plot.png", blob.PresignOptions{Filename: "plot.png", ContentType: "image/png", Inline: true})
	fmt.Println(err)
	// Output: <nil>
}

// TestFull asks a store that has no room: the error of a write says so, readiness too, until a write succeeds.
func TestFull(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		code   string
	}{
		"BuiltIn":         {http.StatusInsufficientStorage, "StorageFull"},
		"MinIO":           {http.StatusInsufficientStorage, "XMinioStorageFull"},
		"AfterABeginning": {http.StatusOK, "StorageFull"}, // of an upload that took long to complete
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var room atomic.Bool
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodHead || room.Load() {
					w.Header().Set("ETag", `"0"`)
					return
				}
				w.Header().Set("Content-Type", "application/xml")
				if r.Method == http.MethodGet {
					_, _ = w.Write([]byte(`<?xml version="1.0"?><ListPartsResult><Part><PartNumber>1</PartNumber><ETag>"0"</ETag><Size>1</Size></Part></ListPartsResult>`))
					return
				}
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(`<?xml version="1.0" encoding="UTF-8"?><Error><Code>` + c.code + `</Code><Message>full</Message></Error>`))
			}))
			t.Cleanup(server.Close)
			s := newStore(t, blob.Config{Endpoint: server.URL, AccessKey: "a", SecretKey: "s", Bucket: "farm", Region: "us-east-1"})
			testbed.Must(t, s.Ping(t.Context()))
			if c.status == http.StatusOK {
				err := s.CompleteUpload(t.Context(), "k", "u", 1)
				if !errors.Is(err, blob.ErrFull) {
					t.Errorf("CompleteUpload = %v, want ErrFull", err)
				}
				return
			}
			put := func() error {
				_, err := s.Put(t.Context(), "k", strings.NewReader("x"), 1, blob.PutOptions{})
				return err
			}
			if err := put(); !errors.Is(err, blob.ErrFull) || farm.MessageOf(err) != "The object store is full. Its operator must make room." {
				t.Errorf("Put = %v (%s), want ErrFull", err, farm.MessageOf(err))
			}
			if err := s.Ping(t.Context()); !errors.Is(err, blob.ErrFull) {
				t.Errorf("Ping = %v, want ErrFull", err)
			}
			room.Store(true)
			testbed.Must(t, put())
			if err := s.Ping(t.Context()); err != nil {
				t.Errorf("Ping after a write: %v", err)
			}
		})
	}
}

// Silent says since when the service answers nothing: an error of the service counts, one of the caller does not.
func TestSilent(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) }))
	t.Cleanup(server.Close)
	s := newStore(t, blob.Config{Endpoint: server.URL, AccessKey: "a", SecretKey: "s", Bucket: "farm", Region: "us-east-1"})
	put := func(ctx context.Context, code int) {
		status.Store(int64(code))
		_, _ = s.Put(ctx, "k", strings.NewReader("x"), 1, blob.PutOptions{})
	}
	silent := func(when string, want bool) {
		t.Helper()
		if got := s.Silent(); (got > 0) != want {
			t.Errorf("%s: silent for %s", when, got)
		}
	}
	silent("before the first request", false)
	gone, leave := context.WithCancel(t.Context())
	leave()
	put(gone, http.StatusOK)
	silent("a caller left", false)
	for _, code := range []int{http.StatusServiceUnavailable, http.StatusInsufficientStorage, http.StatusTooManyRequests} {
		put(t.Context(), code)
		silent(http.StatusText(code), true)
		put(gone, http.StatusOK)
		silent("a caller left", true)
		put(t.Context(), http.StatusForbidden)
		silent("the service refused", false)
	}
	server.Close()
	put(t.Context(), http.StatusOK)
	silent("the service is down", true)
}
