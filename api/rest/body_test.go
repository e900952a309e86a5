package rest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Large bodies are decoded on the cores of their tenant, of which it has half: here it has none left.
func TestLargeBodiesAreDecodedOnACore(t *testing.T) {
	t.Parallel()
	memory := budget.New(0)
	many := func(values int) string { return "[" + strings.Repeat("1,", values-2) + "1]" } // the list is one of them
	for body, want := range map[string]bool{                                               // each value counts as 64 bytes, and there is always one
		strings.Repeat(" ", budget.SmallBytes-64): true, strings.Repeat(" ", budget.SmallBytes-63): false, many(992): true, many(993): false,
	} {
		for name, decode := range map[string]func(*gin.Context, int64, func([]byte) error) error{"DecodeJSON": rest.DecodeJSON, "DecodeAnyJSON": rest.DecodeAnyJSON} {
			c, _ := gin.CreateTestContext(httptest.NewRecorder())
			c.Request = httptest.NewRequestWithContext(testbed.WithoutCore(t, memory, "acme"), http.MethodPost, "/", strings.NewReader(body))
			decoded := false
			err := decode(c, 1<<20, func(text []byte) error {
				decoded = string(text) == body
				return nil
			})
			if decoded != want || errors.Is(err, context.Canceled) == want {
				t.Errorf("%s of %d bytes %.10q…, without a core: decoded %v, %v", name, len(body), body, decoded, err)
			}
		}
	}
}

// What a request holds is encoded on a core, too. A caller that has left gets no answer in any case.
func TestLargeAnswersAreEncodedOnACore(t *testing.T) {
	t.Parallel()
	for held, want := range map[int64]bool{budget.SmallBytes: true, budget.SmallBytes + 1: false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			memory := budget.New(1 << 30)
			ctx, hold := memory.With(ctx, "acme", 0)
			defer hold.Release()
			testbed.Must(t, budget.Charge(ctx, held))
			testbed.TakeCores(t, memory, "acme")
			answer := httptest.NewRecorder()
			c, _ := gin.CreateTestContext(answer)
			c.Request = httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
			go func() { _ = rest.Reply(c, http.StatusOK, "x") }()
			synctest.Wait()
			if got := answer.Body.Len() > 0; got != want {
				t.Errorf("a request that holds %d bytes, without a core: answered %v", held, got)
			}
			cancel()
			synctest.Wait()
			if answer.Body.Len() == 0 {
				t.Errorf("a request that holds %d bytes is not answered", held)
			}
		})
	}
}

func TestStatusOf(t *testing.T) {
	t.Parallel()
	for code, want := range map[farm.Code]int{
		farm.CodeInvalid: 422, farm.CodeUnauthorized: 401, farm.CodeNotFound: 404, farm.CodeConflict: 409, farm.CodeTooLarge: 413,
		farm.CodeExhausted: 429, farm.CodeUnavailable: 503, farm.CodeInternal: 500,
	} {
		if got := rest.StatusOf(farm.Errorf(code, "why")); got != want {
			t.Errorf("%s is %d, want %d", code, got, want)
		}
	}
	if got := rest.StatusOf(errors.New("a bug")); got != 500 {
		t.Errorf("an error without a code is %d", got)
	}
}

// A body of somebody without a key ends when its first bytes are late, however long one byte may take elsewhere.
func TestWithinBoundsALateBody(t *testing.T) {
	t.Parallel()
	engine := gin.New()
	engine.POST("/", rest.Identify(time.Hour), func(c *gin.Context) {
		rest.Within(c, time.Millisecond)
		_, err := io.ReadAll(rest.HeldBody(c))
		c.Status(rest.StatusOf(err))
	})
	server := httptest.NewServer(engine)
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute)) // detects a hang
	_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		_ = answer.Body.Close()
	}
	if err != nil || answer.StatusCode != http.StatusRequestTimeout {
		t.Fatalf("the answer is %v, %v", answer, err)
	}
}

// slow is a body that brings so many bytes every so often, up to its deadline.
type slow struct {
	bytes    int
	every    time.Duration
	size     int
	deadline time.Time
}

func (s *slow) Read(p []byte) (int, error) {
	if s.size == 0 {
		return 0, io.EOF
	}
	if wait := min(s.every, time.Until(s.deadline)); wait < s.every {
		time.Sleep(max(wait, 0)) // by the clock of the bubble
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(s.every)
	n := min(len(p), s.bytes, s.size)
	s.size -= n
	return n, nil
}

// deadlines is a connection with the deadlines of a body.
type deadlines struct {
	http.ResponseWriter
	of *slow
}

func (d deadlines) SetReadDeadline(t time.Time) error {
	d.of.deadline = t
	return nil
}

// One byte every 8 s restarted the stall timeout for as long as the caller liked, while its body held memory. 16 KiB a second held 64 MiB of it for
// 17 minutes.
func TestABodyThatIsHeldMustArrive(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body slow
		read func(*gin.Context) io.Reader
		code int
		took time.Duration // by the clock of the bubble
	}{
		"ByteByByte":       {slow{bytes: 1, every: 8 * time.Second, size: 1000}, rest.HeldBody, http.StatusRequestTimeout, 30 * time.Second},
		"ByteByByteStream": {slow{bytes: 1, every: 8 * time.Second, size: 1000}, rest.Body, http.StatusOK, 8000 * time.Second},
		"TooSlow":          {slow{bytes: 8 << 10, every: time.Second, size: 16 << 20}, rest.HeldBody, http.StatusRequestTimeout, 59 * time.Second},
		"FastEnough":       {slow{bytes: 16 << 10, every: time.Second, size: 16 << 20}, rest.HeldBody, http.StatusOK, 1024 * time.Second},
		"LateOnce":         {slow{bytes: 640 << 10, every: 29 * time.Second, size: 640 << 10}, rest.HeldBody, http.StatusOK, 29 * time.Second},
		"WholeTooSlow":     {slow{bytes: 16 << 10, every: time.Second, size: 16 << 20}, rest.WholeBody, http.StatusRequestTimeout, 300 * time.Second},
		"WholeFastEnough":  {slow{bytes: 64 << 10, every: time.Second, size: 16 << 20}, rest.WholeBody, http.StatusOK, 256 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				code, engine := 0, gin.New()
				engine.POST("/", rest.Identify(30*time.Second), func(ctx *gin.Context) {
					code = http.StatusOK
					if _, err := io.ReadFull(c.read(ctx), make([]byte, 16<<20+1)); !errors.Is(err, io.ErrUnexpectedEOF) {
						code = rest.StatusOf(err)
					}
				})
				began := time.Now()
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", &c.body)
				engine.ServeHTTP(deadlines{httptest.NewRecorder(), &c.body}, r)
				if took := time.Since(began).Truncate(time.Second); code != c.code || took != c.took {
					t.Errorf("it ends with %d after %s, want %d after %s", code, took, c.code, c.took)
				}
			})
		})
	}
}

// A message that is begun and never ended is ended.
func TestAMessageThatIsHeldMustArrive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from, to := io.Pipe()
		began := time.Now()
		body := rest.Paced(t.Context(), from, 30*time.Second, func() { _ = to.CloseWithError(os.ErrDeadlineExceeded) })
		go func() { _, _ = to.Write([]byte("{")) }()
		if _, err := io.ReadAll(body); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 30*time.Second {
			t.Errorf("it ends with %v after %s", err, time.Since(began))
		}
	})
}

// longest is the length of the longest buffer that was to be filled.
type longest int

func (l *longest) Read(p []byte) (int, error) {
	*l = max(*l, longest(len(p)))
	return len(p), nil
}

// The client's time does not run while the server waits for a tenant's bytes: before each piece of a message, not between the reads that make it up.
func TestAMessageIsReadInPieces(t *testing.T) {
	t.Parallel()
	var l longest
	_, err := io.ReadFull(rest.Paced(t.Context(), &l, time.Minute, func() {}), make([]byte, 1<<20))
	testbed.Check(t, err == nil && l == 64<<10, "%d bytes are read under one timer, %v", l, err)
}

// A server reads what is left of a body before it answers: where the key ends before a read, it waits no stall timeout for that.
func TestABodyWhoseKeyEndedIsNotAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancelCause(t.Context())
		stalled := &slow{bytes: 1, every: time.Hour, size: 2}
		c, _ := gin.CreateTestContext(deadlines{httptest.NewRecorder(), stalled})
		c.Request = httptest.NewRequestWithContext(ctx, http.MethodPost, "/", stalled)
		rest.Identify(time.Hour)(c)
		body := rest.Body(c)
		end(access.ErrEnded)
		synctest.Wait()
		_, err := body.Read(make([]byte, 1))
		left := time.Until(stalled.deadline)
		testbed.Check(t, rest.StatusOf(err) == http.StatusUnauthorized && left <= 0, "a read after the end of the key: %v, the rest of the body has %s", err, left)
	})
}
