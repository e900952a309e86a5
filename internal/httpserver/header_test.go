package httpserver_test

import (
	"bufio"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// headerOf is a request with this many lines before its body: its own, Host and others of the shortest kind.
func headerOf(lines int, more string) string {
	return "POST / HTTP/1.1\r\nHost: test\r\n" + strings.Repeat("a:\n", lines-2-strings.Count(more, "\n")) + more
}

// A header of many short lines takes far more memory than its bytes. It ends its connection before it is complete.
func TestLinesOfAHeaderAreBounded(t *testing.T) {
	t.Parallel()
	s := limited(t, 8, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "here")
	})
	for _, before := range []int{0, 1} { // requests on the same connection
		for lines, served := range map[int]bool{httpserver.HeaderLines - 1: true, httpserver.HeaderLines: true, 7200: false} {
			c := dial(t, s)
			for range before {
				c.send("/")
				c.answer()
			}
			text := headerOf(lines, "")
			if served {
				text += "\r\n"
			}
			_, _ = io.WriteString(c.conn, text) // fails if the server has had enough
			if served {
				c.answer()
				continue
			}
			resp, err := http.ReadResponse(c.read, nil)
			if err == nil && resp.StatusCode != http.StatusBadRequest { // the rest of the header may reset the connection first
				t.Errorf("%d lines after %d requests are answered with %s", lines, before, resp.Status)
			}
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
			}
			c.closed()
		}
	}
}

// A server that sets no limit on the bytes of headers has one.
func TestBytesOfAHeaderAreBounded(t *testing.T) {
	t.Parallel()
	s := limited(t, 8, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	for bytes, served := range map[int]bool{30 << 10: true, 40 << 10: false} {
		c := dial(t, s)
		_, _ = io.WriteString(c.conn, "GET / HTTP/1.1\r\nHost: test\r\nX: "+strings.Repeat("x", bytes)) // fails if the server has had enough
		if !served {
			_, _ = io.ReadAll(c.read)
			c.closed()
			continue
		}
		_, _ = io.WriteString(c.conn, "\r\n\r\n")
		c.answer()
	}
}

// Lines of bodies do not count, however they arrive.
func TestLinesOfBodiesAreNotThoseOfHeaders(t *testing.T) {
	t.Parallel()
	got := make(chan int64, 1)
	s := limited(t, 8, func(w http.ResponseWriter, r *http.Request) {
		httpserver.Known(r.Context(), "", nil)
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			n = -1
		}
		got <- n
		_, _ = io.WriteString(w, "here")
	})
	c := dial(t, s)
	body := strings.Repeat("\n", 9999)
	for range 3 {
		_, _ = io.WriteString(c.conn, headerOf(httpserver.HeaderLines, "Content-Length: 9999\r\n")+"\r\n"+body)
		c.answer()
		if n := <-got; n != int64(len(body)) {
			t.Errorf("the handler read %d bytes of %d", n, len(body))
		}
		_, _ = io.WriteString(c.conn, headerOf(4, "Transfer-Encoding: chunked\r\n")+"\r\n"+strings.Repeat("1\r\n\n\r\n", 9999)+"0\r\n\r\n")
		c.answer()
		if n := <-got; n != int64(len(body)) {
			t.Errorf("the handler read %d bytes of %d in chunks", n, len(body))
		}
	}
	_, _ = io.WriteString(c.conn, headerOf(100, "")+"\r\n"+headerOf(100, "")+"\r\n") // pipelined
	for range 2 {
		c.answer()
		<-got
	}
}

// A connection that was taken over is no longer HTTP.
func TestLinesOfConnectionsThatWereTakenOverAreNotThoseOfHeaders(t *testing.T) {
	t.Parallel()
	const size = 1 << 16
	s := limited(t, 8, func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		if n, err := io.CopyN(io.Discard, buffered, size); err != nil {
			t.Errorf("read %d bytes: %v", n, err)
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhere")
	})
	c := dial(t, s)
	c.send("/")
	_, _ = io.WriteString(c.conn, strings.Repeat("\n", size))
	c.answer()
}

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
					testbed.Must(t, err)
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
	answerEach(conn, slices.Repeat([]string{answer}, 3))
}

// answerEach gives the requests one answer after the other.
func answerEach(conn net.Conn, answers []string) {
	defer func() { _ = conn.Close() }()
	from := bufio.NewReader(conn)
	for _, answer := range answers {
		if _, err := http.ReadRequest(from); err != nil {
			return
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// The transport reads before it has a request: the first buffer of an answer passed uncounted, on each connection and for each answer on it.
func TestTheFirstLinesOfAnAnswerCount(t *testing.T) {
	t.Parallel()
	many := "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + strings.Repeat("a:\n", 200) + "\r\n"
	for name, before := range map[string]string{
		"First":          "",
		"AfterABody":     "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"AfterChunks":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"AfterNoContent": "HTTP/1.1 204 No Content\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := []string{many}
			if before != "" {
				answers = []string{before, before, many}
			}
			dialed := 0
			transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				dialed++
				go answerEach(far, answers)
				return near, nil
			}}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: httpserver.BoundAnswers(transport)}
			for i := range answers {
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
				res, err := client.Do(r)
				switch {
				case i == len(answers)-1:
					if !errors.Is(err, httpserver.ErrHeaderLines) || dialed != 1 {
						t.Errorf("it is answered with %v, on %d connections", err, dialed)
					}
				case err != nil:
					t.Fatal(err)
				}
				if err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
			}
		})
	}
}

// authority has a certificate, and the key of it.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue makes a certificate for a key. nil makes one that signs itself.
func (a *authority) issue(t *testing.T, subject string, key crypto.PublicKey, own *ecdsa.PrivateKey) *authority {
	t.Helper()
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: subject}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(0, 0).AddDate(200, 0, 0),
		IsCA: true, BasicConstraintsValid: true, DNSNames: []string{"example.com"},
	}
	parent, signer := form, own
	if a != nil {
		parent, signer = a.cert, a.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, form, parent, key, signer)
	testbed.Must(t, err)
	cert, err := x509.ParseCertificate(raw)
	testbed.Must(t, err)
	return &authority{cert, own}
}

// next issues a certificate for a new key.
func (a *authority) next(t *testing.T, subject string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testbed.Must(t, err)
	return a.issue(t, subject, &key.PublicKey, key)
}

// pipe is a pair of connections without buffers, whose ends cannot both write at once.
func pipe() (near, far net.Conn, err error) {
	near, far = net.Pipe()
	return near, far, nil
}

// loopback is a pair of connections by TCP.
func loopback() (near, far net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	far, err = l.Accept()
	return near, far, err
}

// visit asks a server with certificates, its own first, for an answer.
func visit(ctx context.Context, connect func() (near, far net.Conn, err error), root *authority, host string, server *authority, more ...*authority) error {
	roots := x509.NewCertPool()
	roots.AddCert(root.cert)
	chain := tls.Certificate{Certificate: [][]byte{server.cert.Raw}, PrivateKey: server.key}
	for _, a := range more {
		chain.Certificate = append(chain.Certificate, a.cert.Raw)
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, far, err := connect()
			if err != nil {
				return nil, err
			}
			go answerAll(tls.Server(far, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{chain}}), "HTTP/1.1 204 No Content\r\n\r\n")
			return near, nil
		},
	}
	defer transport.CloseIdleConnections()
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+"/", nil)
	res, err := (&http.Client{Transport: httpserver.BoundAnswers(transport)}).Do(r)
	if err == nil {
		_ = res.Body.Close()
	}
	return err
}

// A server that sent a hundred certificates of one subject, with keys of 8192 bits, cost its client a third of a second of a core for each connection.
func TestCertificatesOfAServerAreBounded(t *testing.T) {
	t.Parallel()
	root := (*authority)(nil).next(t, "root")
	first := root.next(t, "first")
	server := first.next(t, "server")
	chain := func(length int) []*authority { // each issued the one before it
		all := []*authority{root.next(t, "0")}
		for i := 1; i < length; i++ {
			all = append([]*authority{all[0].next(t, strconv.Itoa(i))}, all...)
		}
		return all
	}
	withKey := func(bits int) []*authority { // nobody has the other half of it
		n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
		key := &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 1<<31 - 1}
		return []*authority{server, first, first.issue(t, "large", key, nil)}
	}
	second := root.next(t, "first")
	for name, c := range map[string]struct {
		sent   []*authority
		served bool
	}{
		"ChainBelow":           {chain(httpserver.MaxChain - 1), true},
		"ChainAt":              {chain(httpserver.MaxChain), true},
		"ChainAbove":           {chain(httpserver.MaxChain + 1), false},
		"KeyBelow":             {withKey(httpserver.MaxKeyBits - 1), true},
		"KeyAt":                {withKey(httpserver.MaxKeyBits), true},
		"KeyAbove":             {withKey(httpserver.MaxKeyBits + 1), false},
		"OneSubjectInOrder":    {[]*authority{server, first, second}, true},
		"OneSubjectOutOfOrder": {[]*authority{server, second, first}, false},
		"IssuerTwice":          {[]*authority{server, server, first, first}, true},
		"NoIssuer":             {[]*authority{server}, false},
		"OtherRoot":            {[]*authority{(*authority)(nil).next(t, "root").next(t, "server")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := visit(t.Context(), loopback, root, "example.com", c.sent[0], c.sent[1:]...)
			if _, refused := errors.AsType[*tls.CertificateVerificationError](err); c.served && err != nil || !c.served && !refused {
				t.Errorf("it is answered with %v", err)
			}
		})
	}
	for host, served := range map[string]bool{"example.com": true, "example.com:8443": true, "example.org": false, "192.0.2.1": false, "[2001:db8::1]": false} {
		err := visit(t.Context(), loopback, root, host, server, first)
		if _, refused := errors.AsType[x509.HostnameError](err); served && err != nil || !served && !refused {
			t.Errorf("for %s: %v", host, err)
		}
	}
}

// What a certificate costs is chosen by its server, for which a tenant has no more than its cores.
func TestCertificatesAreVerifiedOnACoreOfTheTenant(t *testing.T) {
	t.Parallel()
	root := (*authority)(nil).next(t, "root")
	server := root.next(t, "server")
	synctest.Test(t, func(t *testing.T) {
		memory := budget.New(0)
		cores := testbed.TakeCores(t, memory, "loud")
		var all sync.WaitGroup
		ask := func(tenant string) *atomic.Bool {
			var answered atomic.Bool
			all.Go(func() {
				ctx, hold := memory.With(t.Context(), tenant, 0)
				defer hold.Release()
				err := visit(ctx, pipe, root, "example.com", server)
				testbed.Check(t, err == nil, "%s: %v", tenant, err)
				answered.Store(true)
			})
			synctest.Wait()
			return &answered
		}
		loud, quiet := ask("loud"), ask("quiet")
		testbed.Check(t, !loud.Load() && quiet.Load(), "without a core: answered %v, another tenant %v", loud.Load(), quiet.Load())
		cores.Leave()
		all.Wait()
		testbed.Check(t, loud.Load(), "it is not answered with a core")
	})
}

// Certificates are parsed before they can be counted.
func TestBytesOfAHandshakeAreBounded(t *testing.T) {
	t.Parallel()
	for _, size := range []int{httpserver.MaxHandshakeBytes - 1, httpserver.MaxHandshakeBytes, httpserver.MaxHandshakeBytes + 1} {
		near, far := net.Pipe()
		go func() {
			_, _ = far.Write(make([]byte, size))
			_ = far.Close()
		}()
		got, err := io.ReadAll(httpserver.Handshaking(near))
		_ = near.Close()
		if most := httpserver.MaxHandshakeBytes; len(got) != min(size, most) || size < most && err != nil || size > most && err == nil {
			t.Errorf("of %d bytes %d are read, %v", size, len(got), err)
		}
	}
	root := (*authority)(nil).next(t, "root")
	if err := visit(t.Context(), loopback, root, "example.com", root.next(t, strings.Repeat("a", httpserver.MaxHandshakeBytes))); err == nil {
		t.Error("a certificate with a long name is taken")
	}
}
