package httpserver_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// An answer of many short lines takes far more memory than its bytes. Lines of bodies, and of the answers before it, do not count.
func TestLinesOfAnswersAreBounded(t *testing.T) {
	t.Parallel()
	const early = "HTTP/1.1 103 Early Hints\r\n"
	status := "HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n"
	body := strings.Repeat("\n", 9999)
	for name, c := range map[string]struct {
		header string
		served bool
	}{
		"Usual":     {status, true},
		"Most":      {status + strings.Repeat("a:\n", httpserver.HeaderLines-3), true},
		"Many":      {status + strings.Repeat("a:\n", 7200), false},
		"ManyEarly": {early + "\r\n" + status + strings.Repeat("a:\n", 7200), false},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(map[bool]string{false: "", true: "TLS"}[secure]+name, func(t *testing.T) {
				t.Parallel()
				server := httptest.NewUnstartedServer(http.NotFoundHandler())
				server.StartTLS() // for its certificate
				defer server.Close()
				roots := x509.NewCertPool()
				roots.AddCert(server.Certificate())
				transport := &http.Transport{
					TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
					DialContext: func(context.Context, string, string) (net.Conn, error) {
						near, far := net.Pipe()
						if secure {
							far = tls.Server(far, server.TLS.Clone())
						}
						go answerAll(far, c.header+"\r\n"+body)
						return near, nil
					},
				}
				defer transport.CloseIdleConnections()
				client := &http.Client{Transport: httpserver.BoundAnswers(transport)}
				url := map[bool]string{false: "http", true: "https"}[secure] + "://example.com/"
				for range 3 { // on the same connection
					r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
					res, err := client.Do(r)
					if !c.served {
						if !errors.Is(err, httpserver.ErrHeaderLines) {
							t.Fatalf("it is answered with %v", err)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					got, err := io.ReadAll(res.Body)
					_ = res.Body.Close()
					if err != nil || string(got) != body {
						t.Errorf("%d bytes, %v", len(got), err)
					}
				}
			})
		}
	}
}

// answerAll gives each request the same answer.
func answerAll(conn net.Conn, answer string) {
	defer func() { _ = conn.Close() }()
	from := bufio.NewReader(conn)
	for {
		if _, err := http.ReadRequest(from); err != nil {
			return
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}
