package egressproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// timeout is how long a test waits for what must happen.
const timeout = time.Minute

// publicIP counts as public in these tests; victimIP is as private as it is. No address is 127.0.0.1, where other programs of the machine
// look for their servers.
const (
	proxyIP  = "127.0.0.4"
	publicIP = "127.0.0.2"
	victimIP = "127.0.0.3"
)

// world is a proxy with a host that rules allow, a victim that nothing may reach, and a resolver.
type world struct {
	t     testing.TB
	proxy *egressproxy.Proxy
	addr  string // of the proxy
	port  int    // of the host
	host  *recorder
	hide  *recorder // the victim, at the same port

	curves []tls.CurveID // of TLS sites; nil: Go's

	mu      sync.Mutex
	names   map[string][]string // the addresses of a name
	next    map[string][]string // those from the second question on
	asked   []string
	reports []egressproxy.Connection
	changed chan struct{}
}

// recorder is a server that keeps what it receives.
type recorder struct {
	net.Listener
	conns atomic.Int64
	mu    sync.Mutex
	got   bytes.Buffer
	serve func(net.Conn) // nil: read until the end
	wg    sync.WaitGroup
}

func (r *recorder) received() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got.String()
}

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got.Write(b)
}

// record starts a server. Each of its connections is recorded and ends with the test.
func record(t testing.TB, addr string, serve func(net.Conn)) (*recorder, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	r := &recorder{Listener: l, serve: serve}
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	r.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r.conns.Add(1)
			mu.Lock()
			open[conn] = true
			mu.Unlock()
			r.wg.Go(func() {
				defer conn.Close()
				r.serve(teeConn{conn, io.TeeReader(conn, r)})
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for conn := range open {
			conn.Close()
		}
		mu.Unlock()
		r.wg.Wait()
	})
	return r, nil
}

type teeConn struct {
	net.Conn
	from io.Reader
}

func (c teeConn) Read(b []byte) (int, error) { return c.from.Read(b) }

// answer reads one request's header and answers it.
func answer(conn net.Conn) {
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, req.Body)
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
}

// newWorld makes a world whose proxy has rules; {P} in a rule is the port of host and victim.
func newWorld(t testing.TB, limits egressproxy.Limits, serve func(net.Conn), rules ...string) *world {
	t.Helper()
	w := &world{t: t, names: map[string][]string{}, next: map[string][]string{}, changed: make(chan struct{}, 1)}
	if limits.Hello == 0 {
		limits.Hello = timeout
	}
	var err error
	for range 20 { // the same port at two addresses
		w.host, err = record(t, publicIP+":0", serve)
		testbed.Must(t, err)
		w.port = w.host.Addr().(*net.TCPAddr).Port
		if w.hide, err = record(t, victimIP+":"+strconv.Itoa(w.port), func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }); err == nil {
			break
		}
	}
	testbed.Must(t, err)
	if len(rules) == 0 {
		rules = []string{"good.test:{P}", "*.wild.test:{P}"}
	}
	w.names["good.test"] = []string{publicIP}
	w.proxy = egressproxy.New(egressproxy.Options{
		Rules: w.rules(rules...), Limits: limits, Resolver: w, Report: w.report, Tenant: "t",
		Public: func(all ...netip.Addr) bool {
			return !slices.ContainsFunc(all, func(ip netip.Addr) bool { return ip != netip.MustParseAddr(publicIP) && !egressproxy.Public(ip) })
		},
	})
	w.serve(w.proxy)
	return w
}

// serve makes a proxy the one that the test talks to.
func (w *world) serve(p *egressproxy.Proxy) {
	l, err := net.Listen("tcp", proxyIP+":0")
	testbed.Must(w.t, err)
	server := httptest.NewUnstartedServer(p)
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	w.addr = server.Listener.Addr().String()
	w.t.Cleanup(func() {
		p.Close()
		server.CloseClientConnections()
		server.Close()
	})
}

func (w *world) rules(texts ...string) (rules egressproxy.Rules) {
	for _, text := range texts {
		r, err := farm.ParseHostRule(w.fill(text))
		testbed.Must(w.t, err)
		rules.Allow = append(rules.Allow, r)
	}
	return rules
}

func (w *world) fill(text string) string {
	return strings.ReplaceAll(text, "{P}", strconv.Itoa(w.port))
}

// LookupNetIP implements egressproxy.Resolver.
func (w *world) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, host)
	name, rooted := strings.CutSuffix(host, ".")
	if !rooted {
		w.t.Errorf("%q is asked for within search domains", host)
	}
	var ips []netip.Addr
	for _, a := range w.names[name] {
		ips = append(ips, netip.MustParseAddr(a))
	}
	if later, ok := w.next[name]; ok {
		w.names[name] = later
	}
	if len(ips) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return ips, nil
}

func (w *world) lookups() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.asked...)
}

func (w *world) report(c egressproxy.Connection) {
	w.mu.Lock()
	w.reports = append(w.reports, c)
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// wait returns the first n reports, once they are there.
func (w *world) wait(n int) []egressproxy.Connection {
	w.t.Helper()
	late := time.After(timeout)
	for {
		w.mu.Lock()
		got := append([]egressproxy.Connection{}, w.reports...)
		w.mu.Unlock()
		if len(got) >= n {
			return got
		}
		select {
		case <-w.changed:
		case <-late:
			w.t.Fatalf("%d reports instead of %d: %+v", len(got), n, got)
		}
	}
}

// dial connects to the proxy.
func (w *world) dial() *net.TCPConn {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.addr)
	testbed.Must(w.t, err)
	w.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(timeout))
	return conn.(*net.TCPConn)
}

// connect opens a tunnel and returns the answer's status.
func (w *world) connect(target string) (*net.TCPConn, *bufio.Reader, int) {
	w.t.Helper()
	conn := w.dial()
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", w.fill(target))
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	testbed.Must(w.t, err)
	return conn, r, res.StatusCode
}

// client is an HTTP client that uses the proxy, and trusts any server's certificate of good.test.
func (w *world) client(roots *x509.CertPool) *http.Client {
	proxy := &url.URL{Scheme: "http", Host: w.addr}
	tr := &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: roots}}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: timeout}
}

// hello returns the first bytes of a TLS client for a server; "": without SNI.
func hello(server string) []byte {
	c := &captured{}
	_ = tls.Client(c, &tls.Config{ServerName: server, InsecureSkipVerify: true}).Handshake()
	return c.Bytes()
}

type captured struct {
	net.Conn
	bytes.Buffer
}

func (c *captured) Read([]byte) (int, error)         { return 0, io.EOF }
func (c *captured) Write(b []byte) (int, error)      { return c.Buffer.Write(b) }
func (c *captured) Close() error                     { return nil }
func (c *captured) SetWriteDeadline(time.Time) error { return nil }

// extend adds an extension to a ClientHello in one record.
func extend(hello []byte, kind uint16, data []byte) []byte {
	body := bytes.Clone(hello[9:])
	at := 2 + 32
	at += 1 + int(body[at])
	at += 2 + int(body[at])<<8 + int(body[at+1])
	at += 1 + int(body[at])
	extensions := append(bytes.Clone(body[at+2:]), byte(kind>>8), byte(kind), byte(len(data)>>8), byte(len(data)))
	extensions = append(extensions, data...)
	body = append(body[:at], byte(len(extensions)>>8), byte(len(extensions)))
	body = append(body, extensions...)
	message := append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return append([]byte{22, 3, 1, byte(len(message) >> 8), byte(len(message))}, message...)
}

// split cuts the message of one record into records of n bytes.
func split(hello []byte, n int) (records []byte) {
	for rest := hello[5:]; len(rest) > 0; {
		part := rest[:min(n, len(rest))]
		rest = rest[len(part):]
		records = append(records, 22, 3, 1, byte(len(part)>>8), byte(len(part)))
		records = append(records, part...)
	}
	return records
}

// joined puts the messages of two records into one.
func joined(a, b []byte) []byte {
	message := append(bytes.Clone(a[5:]), b[5:]...)
	return append([]byte{22, 3, 1, byte(len(message) >> 8), byte(len(message))}, message...)
}

// data is a record of data.
func data(text string) []byte {
	return append([]byte{23, 3, 3, byte(len(text) >> 8), byte(len(text))}, text...)
}

func sni(name string) []byte {
	entry := append([]byte{0, byte(len(name) >> 8), byte(len(name))}, name...)
	return append([]byte{byte(len(entry) >> 8), byte(len(entry))}, entry...)
}
