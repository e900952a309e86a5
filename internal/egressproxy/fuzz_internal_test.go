package egressproxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// FuzzTarget reads proxy requests as net/http does. What is well formed names a normal host, in the request as well.
func FuzzTarget(f *testing.F) {
	for _, s := range []string{
		"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n", "GET http://a.example/ HTTP/1.1\r\nHost: b\r\n\r\n",
		"CONNECT [::1]:443 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://u@a.example:81/?q HTTP/1.1\r\nHost: b\r\nUpgrade: h2c\r\n\r\n",
		"CONNECT a.example:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", "PRI * HTTP/2.0\r\n\r\n", "GET http:a.example HTTP/1.1\r\nHost: b\r\n\r\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		to, reason := targetOf(r)
		if strings.Trim(shown(to.host), " ") != strings.Trim(to.host, " ") || shown(to.method) != to.method || len(to.host) > 253 {
			t.Fatalf("%q is shown as %q %q", text, to.method, to.host)
		}
		if reason != "" {
			return
		}
		if normal, ok := farm.NormalHost(to.host); !ok || normal != to.host || to.port < 1 || to.port > 65535 {
			t.Fatalf("%q leads to %q", text, to)
		}
		named := r.RequestURI
		if r.Method != http.MethodConnect {
			u, err := url.Parse(r.RequestURI)
			if err != nil || u.User != nil {
				t.Fatalf("%q has the URL %v, %v", text, u, err)
			}
			named = u.Host
		}
		if !strings.HasPrefix(strings.ToLower(named), to.host) {
			t.Fatalf("%q leads to %q", named, to)
		}
	})
}

// FuzzHello reads ClientHellos. One that passes is whole, names the host in it, and nothing after it is read.
func FuzzHello(f *testing.F) {
	const host = "a.example"
	message := []byte("\x01\x00\x00\x46\x03\x03" + strings.Repeat("r", 32) + "\x00\x00\x02\x13\x01\x01\x00\x00\x1b" +
		"\x00\x00\x00\x0e\x00\x0c\x00\x00\x09" + host + "\x00\x2b\x00\x05\x04\x03\x04\x03\x03")
	message[3] = byte(len(message) - 4)
	whole := append([]byte{22, 3, 1, 0, byte(len(message))}, message...)
	if _, reason := readHello(f.Context(), bytes.NewReader(whole), host); reason != "" {
		f.Fatalf("the first seed: %s", reason)
	}
	f.Add(whole)
	f.Add(append(bytes.Clone(whole), whole...))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{22, 3, 1, 0, 0, 22, 3, 1, 0, 1, 1})
	f.Fuzz(func(t *testing.T, sent []byte) {
		from := bytes.NewReader(sent)
		raw, reason := readHello(t.Context(), from, host)
		if !bytes.HasPrefix(sent, raw) || from.Len() != len(sent)-len(raw) {
			t.Fatalf("%d of %d bytes were read, and %d are left", len(raw), len(sent), from.Len())
		}
		if reason == "" && (!oneMessage(raw) || !bytes.Contains(bytes.ToLower(raw), []byte("example"))) && !split(raw) {
			t.Fatalf("%x passes", raw)
		}
	})
}

// split reports whether there are several records, so that the name may be cut.
func split(records []byte) bool {
	return len(records) > 5 && int(records[3])<<8|int(records[4]) != len(records)-5
}

// nameServer answers all questions for addresses of IPv4 by TCP, with so many of them.
func nameServer(t *testing.T, addresses int) (address string) {
	t.Helper()
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	answer := func(query []byte, truncated bool) []byte { // nil: none
		var p dnsmessage.Parser
		header, failed := p.Start(query)
		q, err := p.Question()
		failed = errors.Join(failed, err)
		header.Response, header.Truncated = true, truncated
		b := dnsmessage.NewBuilder(nil, header)
		b.EnableCompression()
		failed = errors.Join(failed, b.StartQuestions(), b.Question(q), b.StartAnswers())
		for i := range addresses {
			if !truncated && q.Type == dnsmessage.TypeA {
				failed = errors.Join(failed, b.AResource(dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, dnsmessage.AResource{A: [4]byte{8, 8, byte(i >> 8), byte(i)}}))
			}
		}
		raw, err := b.Finish()
		if failed = errors.Join(failed, err); failed != nil {
			t.Errorf("answer a question: %v", failed)
			return nil
		}
		return raw
	}
	udp, err := net.ListenPacket("udp", l.Addr().String())
	testbed.Must(t, err)
	t.Cleanup(func() { _ = udp.Close() })
	serving.Go(func() {
		for b := make([]byte, 4096); ; {
			n, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(answer(b[:n], true), from)
		}
	})
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 4096)
			if n, err := conn.Read(b); err == nil {
				raw := answer(b[2:n], false)
				_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(raw))), raw...))
			}
			_ = conn.Close()
		}
	})
	return l.Addr().String()
}

// An answer by TCP can have 4000 addresses, for each of which package net makes a socket before anything else sees them.
func TestAnswersOfNameServersAreBounded(t *testing.T) {
	t.Parallel()
	const addresses = 120 // of 16 bytes; the rest is the length, the header, and the question with the name
	for _, size := range []int{maxAnswerBytes - 1, maxAnswerBytes, maxAnswerBytes + 1} {
		r, server := SystemResolver(), nameServer(t, addresses)
		dial := r.Dial
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) { return dial(ctx, network, server) }
		name := strings.Repeat("a", 50) + "." + strings.Repeat("b", size-2-12-4-addresses*16-len("?"+strings.Repeat("a", 50)+"?.")) + "."
		all, err := r.LookupNetIP(t.Context(), "ip", name)
		if fits := size <= maxAnswerBytes; fits != (err == nil) || fits && len(all) != addresses {
			t.Errorf("an answer of %d bytes: %d addresses, %v", size, len(all), err)
		}
	}
}

// A machine's own public address leads to what is meant for others only, such as servers that a firewall in front of it protects.
func TestAddressesOfThisMachineAreNotPublic(t *testing.T) {
	t.Parallel()
	own := []net.Addr{
		&net.IPNet{IP: net.ParseIP("1.1.1.1"), Mask: net.CIDRMask(24, 32)},
		&net.IPNet{IP: net.ParseIP("2606:4700::1"), Mask: net.CIDRMask(64, 128)},
	}
	for text, want := range map[string]bool{"1.1.1.1": false, "::ffff:1.1.1.1": false, "2606:4700::1": false, "2606:4700::1%eth0": false, "1.1.1.2": true, "2606:4700::2": true, "10.0.0.1": false} {
		testbed.Diff(t, text, want, publicBeside(own, netip.MustParseAddr(text)))
	}
	actual, err := net.InterfaceAddrs()
	testbed.Must(t, err)
	for _, a := range actual {
		if ip, err := netip.ParsePrefix(a.String()); err == nil && (Public(ip.Addr()) || !OfThisMachine(ip.Addr())) {
			t.Errorf("%s is public, or not of this machine", a)
		}
	}
}
