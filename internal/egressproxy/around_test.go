package egressproxy_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// around is one way around the list. It must be refused and reported, and neither the victim nor the host may get a byte.
type around struct {
	name    string
	request string   // what is sent to the proxy, {P}: the port; else
	connect string   // the target of a CONNECT, which is answered 200 if then is set
	then    []byte   // what is sent in the tunnel
	slowly  bool     // one byte at a time
	answers []string // the addresses of x.wild.test
	reason  string   // of the report; "": net/http refuses the request before anybody could say where it goes
}

// resolved is a name below the wildcard with these addresses.
func resolved(name string, answers ...string) around {
	return around{name: "the name leads to " + name, connect: "x.wild.test:{P}", answers: answers, reason: egressproxy.ReasonAddress}
}

func host(name, target string) around {
	return around{name: name, connect: target, reason: egressproxy.ReasonHost}
}

func form(name, target string) around {
	return around{name: name, connect: target, reason: egressproxy.ReasonForm}
}

func malformed(name, target string) around { return around{name: name, connect: target} }

func rule(name, target string) around {
	return around{name: name, connect: target, reason: egressproxy.ReasonRule}
}

func inside(name, reason string, then []byte) around {
	return around{name: name, connect: "good.test:{P}", then: then, reason: reason}
}

func request(name, reason, text string) around {
	return around{name: name, request: strings.ReplaceAll(text, "\n", "\r\n"), reason: reason}
}

// outerECH is a well-formed extension encrypted_client_hello.
var outerECH = append(append([]byte{0, 0, 1, 0, 1, 7, 0, 32}, make([]byte, 32)...), append([]byte{0, 64}, make([]byte, 64)...)...)

func ways() []around {
	long := strings.Repeat("a", 63)
	return []around{
		host("CONNECT to an IPv4 address", "127.0.0.3:{P}"),
		host("CONNECT to a public IPv4 address", "9.9.9.9:443"),
		host("CONNECT to the address of an allowed host", publicIP+":{P}"),
		host("decimal address", "2130706435:{P}"),
		host("octal address", "0177.0.0.03:{P}"),
		host("hexadecimal address", "0x7f000003:{P}"),
		host("hexadecimal address in parts", "0x7f.0.0.0x3:{P}"),
		host("short address", "127.3:{P}"),
		host("address with a trailing dot", "127.0.0.3.:{P}"),
		host("unspecified address", "0.0.0.0:{P}"),
		host("zero", "0:{P}"),
		host("IPv6 loopback", "[::1]:{P}"),
		host("IPv4-mapped IPv6", "[::ffff:127.0.0.3]:{P}"),
		host("IPv4-compatible IPv6", "[::127.0.0.3]:{P}"),
		host("NAT64", "[64:ff9b::7f00:3]:{P}"),
		host("link-local IPv6 with a zone", "[fe80::1%25lo]:{P}"),
		malformed("a name in brackets", "[good.test]:{P}"),
		host("localhost", "localhost:{P}"),
		host("single label", "redis:{P}"),
		host("user before an address", "good.test@127.0.0.3:{P}"),
		host("user before a denied name", "good.test@evil.test:{P}"),
		host("letter outside ASCII", "g\u00f6od.test:{P}"),
		malformed("escaped dot", "good%2etest:{P}"),
		host("label over the limit of DNS", long+"a.wild.test:{P}"),
		host("name over the limit of DNS", strings.Repeat(long+".", 4)+"wild.test:{P}"),
		host("wildcard as a name", "*.wild.test:{P}"),
		rule("suffix without a dot", "evilwild.test:{P}"),
		rule("allowed name as a prefix", "good.test.evil:{P}"),
		rule("name below one without wildcard", "a.good.test:{P}"),
		rule("the wildcard's own name", "wild.test:{P}"),
		rule("xn-- name that looks alike", "xn--god-jua.test:{P}"),
		rule("DNS tunnel through a denied name", "secret-in-a-label.attacker.test:{P}"),
		rule("other port", "good.test:22"),
		rule("default port where the rule has another", "good.test:443"),
		form("port with a zero before it", "good.test:0{P}"),
		form("port over 16 bits", "good.test:65979"),
		form("port 0", "good.test:0"),
		malformed("port by name", "good.test:https"),
		form("no port", "good.test"),
		malformed("two ports", "good.test:{P}:{P}"),
		form("CONNECT to a URL", "http://good.test:{P}/"),
		host("CONNECT to a path", "/good.test:{P}"),

		resolved("a private address", victimIP),
		resolved("a public and a private address", publicIP, victimIP),
		resolved("a private and a public address", victimIP, publicIP),
		resolved("a private network", "10.1.2.3"),
		resolved("the metadata service", "169.254.169.254"),
		resolved("a metadata service by CGNAT", "100.100.100.200"),
		resolved("a metadata service by IPv6", "fd00:ec2::254"),
		resolved("a platform service", "168.63.129.16"),
		resolved("a mapped address", "::ffff:127.0.0.3"),
		resolved("a compatible address", "::7f00:3"),
		resolved("NAT64", "64:ff9b::7f00:3"),
		resolved("local NAT64", "64:ff9b:1::7f00:3"),
		resolved("6to4", "2002:7f00:3::1"),
		resolved("Teredo", "2001:0:7f00:3::1"),
		resolved("link-local with a zone", "fe80::1%lo"),
		resolved("0.0.0.0", "0.0.0.0"),
		resolved("::", "::"),
		resolved("multicast", "224.0.0.1"),
		resolved("broadcast", "255.255.255.255"),

		inside("plain HTTP in a tunnel", egressproxy.ReasonNoTLS, []byte("GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")),
		inside("proxy within a proxy", egressproxy.ReasonNoTLS, []byte("CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test\r\n\r\n")),
		inside("HTTP/2 without TLS in a tunnel", egressproxy.ReasonNoTLS, []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
		inside("SSH in a tunnel", egressproxy.ReasonNoTLS, []byte("SSH-2.0-OpenSSH_9.2\r\n")),
		inside("SOCKS in a tunnel", egressproxy.ReasonNoTLS, []byte{5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 3, 0, 80}),
		inside("encrypted data first", egressproxy.ReasonNoTLS, append([]byte{23, 3, 3, 0, 100}, make([]byte, 100)...)),
		inside("SSL 2", egressproxy.ReasonNoTLS, append([]byte{0x80, 0x2e, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10}, make([]byte, 40)...)),
		inside("no SNI", egressproxy.ReasonNoSNI, hello("")),
		inside("other SNI", egressproxy.ReasonSNI, hello("evil.test")),
		inside("SNI of a name below", egressproxy.ReasonSNI, hello("a.good.test")),
		inside("SNI of another allowed host", egressproxy.ReasonSNI, hello("x.wild.test")),
		inside("other SNI split over records", egressproxy.ReasonSNI, split(hello("evil.test"), 11)),
		{name: "other SNI split over segments", connect: "good.test:{P}", then: hello("evil.test"), slowly: true, reason: egressproxy.ReasonSNI},
		inside("two extensions of SNI", egressproxy.ReasonNoTLS, extend(hello("good.test"), 0, sni("evil.test"))),
		inside("second ClientHello in the record of the first", egressproxy.ReasonNoTLS, joined(hello("good.test"), hello("evil.test"))),
		inside("SNI with a NUL", egressproxy.ReasonSNI, extend(hello(""), 0, sni("good.test\x00.evil.test"))),
		inside("SNI with an address", egressproxy.ReasonSNI, extend(hello(""), 0, sni(victimIP))),
		inside("encrypted ClientHello", egressproxy.ReasonECH, extend(hello("good.test"), 0xfe0d, outerECH)),
		inside("ClientHello that is too long", egressproxy.ReasonNoTLS, split(append([]byte{22, 3, 1, 0, 0, 1, 0, 0xf0, 0}, make([]byte, 0xf000)...), 16000)),
		inside("silent tunnel", egressproxy.ReasonHello, []byte{}),
		inside("half a ClientHello", egressproxy.ReasonHello, hello("good.test")[:100]),
		{name: "methods do not hold for HTTPS", connect: "reads.test:{P}", reason: egressproxy.ReasonMethod},

		request("method that the rule lacks", egressproxy.ReasonMethod, "DELETE http://reads.test:{P}/ HTTP/1.1\nHost: reads.test\n\n"),
		request("method in small letters", egressproxy.ReasonMethod, "get http://reads.test:{P}/ HTTP/1.1\nHost: reads.test\n\n"),
		request("plain request for an address", egressproxy.ReasonHost, "GET http://127.0.0.3:{P}/ HTTP/1.1\nHost: good.test\n\n"),
		request("plain request for a decimal address", egressproxy.ReasonHost, "GET http://2130706435:{P}/ HTTP/1.1\nHost: good.test\n\n"),
		request("plain request for IPv6", egressproxy.ReasonHost, "GET http://[::ffff:127.0.0.3]:{P}/ HTTP/1.1\nHost: good.test\n\n"),
		request("plain request for another host in the name of this one", egressproxy.ReasonRule, "GET http://evil.test:{P}/ HTTP/1.1\nHost: good.test:{P}\n\n"),
		request("user in a URL", egressproxy.ReasonForm, "GET http://good.test:{P}@evil.test/ HTTP/1.1\nHost: good.test\n\n"),
		request("user with a password in a URL", egressproxy.ReasonForm, "GET http://good.test:80@127.0.0.3:{P}/ HTTP/1.1\nHost: good.test\n\n"),
		request("https in a plain request", egressproxy.ReasonForm, "GET https://good.test:{P}/ HTTP/1.1\nHost: good.test\n\n"),
		request("other scheme", egressproxy.ReasonForm, "GET gopher://good.test:{P}/_x HTTP/1.1\nHost: good.test\n\n"),
		request("scheme without slashes", egressproxy.ReasonForm, "GET http:good.test:{P}/ HTTP/1.1\nHost: good.test\n\n"),
		request("request for the proxy itself", egressproxy.ReasonForm, "GET / HTTP/1.1\nHost: good.test:{P}\n\n"),
		request("two slashes", egressproxy.ReasonForm, "GET //good.test:{P}/ HTTP/1.1\nHost: good.test\n\n"),
		request("HTTP/2 without TLS", egressproxy.ReasonForm, "PRI * HTTP/2.0\n\nSM\n\n"),
		request("WebSocket over plain HTTP", egressproxy.ReasonUpgrade,
			"GET http://good.test:{P}/ HTTP/1.1\nHost: good.test\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Key: x\nSec-WebSocket-Version: 13\n\n"),
		request("two upgrades", egressproxy.ReasonUpgrade, "GET http://good.test:{P}/ HTTP/1.1\nHost: good.test\nConnection: Upgrade\nUpgrade: h2c, tcp\n\n"),
		request("CONNECT with a body", egressproxy.ReasonForm, "CONNECT good.test:{P} HTTP/1.1\nHost: good.test:{P}\nContent-Length: 5\n\nhello"),
		request("CONNECT with a chunked body", egressproxy.ReasonForm, "CONNECT good.test:{P} HTTP/1.1\nHost: good.test:{P}\nTransfer-Encoding: chunked\n\n0\n\n"),
		request("connect in small letters", egressproxy.ReasonForm, "connect good.test:{P} HTTP/1.1\nHost: good.test:{P}\n\n"),
		request("CONNECT to one host with the Host of another", egressproxy.ReasonRule, "CONNECT evil.test:{P} HTTP/1.1\nHost: good.test:{P}\n\n"),

		request("two Host headers", "", "GET http://good.test:{P}/ HTTP/1.1\nHost: good.test\nHost: evil.test\n\n"),
		request("backslash before a user", "", "GET http://good.test:{P}\\@evil.test/ HTTP/1.1\nHost: good.test\n\n"),
		request("NUL in a name", "", "CONNECT good.test\x00.evil.test:{P} HTTP/1.1\nHost: good.test\n\n"),
		request("space before a colon", "", "GET http://good.test:{P}/ HTTP/1.1\nHost: good.test\nContent-Length : 5\n\nhello"),
		request("two lengths", "", "POST http://good.test:{P}/ HTTP/1.1\nHost: good.test\nContent-Length: 5\nContent-Length: 6\n\nhello!"),
		request("negative length", "", "POST http://good.test:{P}/ HTTP/1.1\nHost: good.test\nContent-Length: -5\n\nhello"),
		request("unknown transfer encoding", "", "POST http://good.test:{P}/ HTTP/1.1\nHost: good.test\nTransfer-Encoding: xchunked\n\n0\n\n"),
		request("two transfer encodings", "", "POST http://good.test:{P}/ HTTP/1.1\nHost: good.test\nTransfer-Encoding: chunked, identity\n\n0\n\n"),
		request("line break in a header by CR", "", "GET http://good.test:{P}/ HTTP/1.1\nHost: good.test\nX: a\rHost: evil.test\n\n"),
		request("no Host", "", "GET http://good.test:{P}/ HTTP/1.1\n\n"),
	}
}

func TestWaysAroundTheList(t *testing.T) {
	t.Parallel()
	all := ways()
	if len(all) < 40 {
		t.Fatalf("%d ways", len(all))
	}
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			limits := egressproxy.Limits{Hello: timeout}
			if a.reason == egressproxy.ReasonHello {
				limits.Hello = 50 * time.Millisecond
			}
			w := newWorld(t, limits, answer, "good.test:{P}", "*.wild.test:{P}", "GET,HEAD reads.test:{P}")
			w.names["reads.test"], w.names["x.wild.test"] = []string{publicIP}, a.answers
			got := a.run(t, w)
			if a.then == nil && (strings.HasPrefix(got, "HTTP/1.1 2") || !strings.HasPrefix(got, "HTTP/1.1 ")) {
				t.Errorf("the answer is %q", got)
			}
			if n := w.hide.conns.Load(); n != 0 {
				t.Errorf("the victim has %d connections and got %q", n, w.hide.received())
			}
			testbed.Diff(t, "the host", "", w.host.received())
			a.checkReport(t, w)
		})
	}
}

// run makes the attempt and returns what came back.
func (a around) run(t *testing.T, w *world) string {
	if a.request != "" || a.then == nil {
		text := w.fill(a.request)
		if text == "" {
			text = fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: good.test\r\n\r\n", w.fill(a.connect))
		}
		conn := w.dial()
		_, _ = io.WriteString(conn, text)
		_ = conn.CloseWrite()
		got, _ := io.ReadAll(conn)
		return string(got)
	}
	conn, r, status := w.connect(a.connect)
	if status != http.StatusOK {
		t.Fatalf("CONNECT is answered %d", status)
	}
	step := max(len(a.then), 1)
	if a.slowly {
		step = 1
	}
	for part := range slices.Chunk(a.then, step) {
		if _, err := conn.Write(part); err != nil {
			break
		}
	}
	got, _ := io.ReadAll(r)
	if text := string(got); text != "" && text != "\x15\x03\x03\x00\x02\x02\x31" {
		t.Errorf("the tunnel carried %q", text)
	}
	return string(got)
}

func (a around) checkReport(t *testing.T, w *world) {
	t.Helper()
	names := w.lookups()
	if len(names) > 1 || (len(names) == 1 && a.then == nil && a.reason != egressproxy.ReasonAddress) {
		t.Errorf("asked the DNS for %q", names)
	}
	if a.reason == "" {
		if len(names) > 0 {
			t.Errorf("asked the DNS for %q", names)
		}
		return
	}
	reports := w.wait(1)
	if len(reports) != 1 || reports[0].Verdict != egressproxy.Denied || reports[0].Reason != a.reason || reports[0].Sent != 0 || reports[0].Received != 0 {
		t.Errorf("the reports are %+v; want one with %q", reports, a.reason)
	}
	if c := reports[0]; c.Method == "" || len(c.Host) > 253 || strings.Trim(c.Host, printable) != "" {
		t.Errorf("the report shows %q %q", c.Method, c.Host)
	}
}

var printable = func() string {
	var all strings.Builder
	for c := byte(' '); c <= '~'; c++ {
		all.WriteByte(c)
	}
	return all.String()
}()

func TestPublic(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"1.1.1.1": true, "2606:4700::1111": true, "2606:4700::1111%eth0": true, "168.63.129.15": true, "::ffff:1.1.1.1": true, "2a00:1450::1": true,
		"127.0.0.1": false, "127.255.255.254": false, "10.1.2.3": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false,
		"169.254.169.254": false, "169.254.170.2": false, "100.64.0.1": false, "100.100.100.200": false, "192.0.0.192": false, "168.63.129.16": false, "161.26.0.7": false, "166.9.1.1": false, "166.12.0.1": true,
		"0.0.0.0": false, "0.1.2.3": false, "224.0.0.1": false, "239.255.255.250": false, "240.0.0.1": false, "255.255.255.255": false,
		"192.0.2.1": false, "198.51.100.1": false, "203.0.113.1": false, "198.18.0.1": false, "192.88.99.1": false,
		"::": false, "::1": false, "::7f00:1": false, "::a9fe:a9fe": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false,
		"::ffff:0:127.0.0.1": false, "64:ff9b::7f00:1": false, "64:ff9b::101:101": false, "64:ff9b:1::a9fe:a9fe": false,
		"2002:7f00:1::": false, "2002:a9fe:a9fe::1": false, "2001::1": false, "2001:0:7f00:1::": false, "2001:db8::1": false, "3fff::1": false,
		"fc00::1": false, "fd00:ec2::254": false, "fe80::1": false, "fe80::1%eth0": false, "fec0::1": false, "ff02::1": false,
		"100::1": false, "5f00::1": false, "4000::1": false, "1fff::1": false,
	} {
		testbed.Diff(t, fmt.Sprintf("Public(%s)", text), want, egressproxy.Public(netip.MustParseAddr(text)))
	}
	if egressproxy.Public(netip.Addr{}) {
		t.Error("no address is public")
	}
}

func TestControlRefusesBeforeConnecting(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer l.Close()
	var asked []netip.Addr
	dialer := net.Dialer{ControlContext: egressproxy.ControlDial(func(all ...netip.Addr) bool {
		asked = append(asked, all...)
		return egressproxy.Public(all...)
	})}
	if conn, err := dialer.DialContext(t.Context(), "tcp", l.Addr().String()); !errors.Is(err, egressproxy.ErrNotPublic) {
		t.Fatalf("connected to %v, error %v", conn, err)
	}
	if len(asked) != 1 || asked[0] != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("checked %v", asked)
	}
}

// The owner of a name chooses how many addresses it has. Some are tried for a connection.
func TestSomeAddressesOfANameAreTried(t *testing.T) {
	t.Parallel()
	control := egressproxy.ControlDial(func(...netip.Addr) bool { return true })
	for n := range 9 {
		if err := control(t.Context(), "tcp", "127.0.0.1:1", nil); (err == nil) != (n < 8) {
			t.Errorf("address %d: %v", n+1, err)
		}
	}
}
