package rest_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
)

// A body that arrives byte by byte ends at the time for all of it, however long one byte may take.
func TestWithinBoundsTheWholeBody(t *testing.T) {
	t.Parallel()
	engine := gin.New()
	engine.POST("/", rest.Identify(time.Hour), func(c *gin.Context) {
		rest.Within(c, time.Millisecond)
		_, err := io.ReadAll(rest.Body(c))
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
