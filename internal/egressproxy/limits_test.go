package egressproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// tunnel opens a tunnel with a ClientHello that has arrived.
func (w *world) tunnel(target, name string) net.Conn {
	w.t.Helper()
	before := len(w.host.received())
	conn, _, status := w.connect(target)
	if status != http.StatusOK {
		w.t.Fatalf("CONNECT %s: %d", target, status)
	}
	first := hello(name)
	_, err := conn.Write(first)
	testbed.Must(w.t, err)
	w.until(func() bool { return len(w.host.received()) >= before+len(first) })
	return conn
}

func (w *world) until(is func() bool) {
	w.t.Helper()
	late := time.After(timeout)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-late:
			w.t.Fatal("it did not happen")
		}
	}
}

func hold(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func TestOpenConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{Connections: 2}, hold)
	first := w.tunnel("good.test:{P}", "good.test")
	w.tunnel("good.test:{P}", "good.test")
	if _, _, status := w.connect("good.test:{P}"); status != http.StatusTooManyRequests {
		t.Fatalf("the third tunnel: %d", status)
	}
	if r := w.wait(1)[0]; r.Reason != egressproxy.ReasonOpen || r.Verdict != egressproxy.Denied {
		t.Errorf("%+v", r)
	}
	_ = first.Close()
	w.wait(2)
	w.until(func() bool { // its place is free just after it is reported
		_, _, status := w.connect("good.test:{P}")
		return status == http.StatusOK
	})
}

func TestAttemptsPerMinuteAreLimited(t *testing.T) {
	t.Parallel()
	const limit = 3
	w := newWorld(t, egressproxy.Limits{ConnectsPerMinute: limit}, hold)
	for i := range 50 { // a new attempt is granted every 20 s
		_, _, status := w.connect("evil.test:443") // refused attempts count
		reason := w.wait(i + 1)[i].Reason
		if i < limit && (status != http.StatusForbidden || reason != egressproxy.ReasonRule) {
			t.Fatalf("attempt %d: %d %q", i, status, reason)
		}
		if i >= limit && status == http.StatusTooManyRequests && reason == egressproxy.ReasonRate {
			return
		}
	}
	t.Error("50 attempts passed")
}

func TestBytesAreLimited(t *testing.T) {
	t.Parallel()
	get := func(w *world) (int, egressproxy.Connection) {
		res, err := w.client(nil).Get(w.fill("http://good.test:{P}/"))
		if err != nil {
			return 0, w.wait(1)[0]
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return res.StatusCode, w.wait(1)[0]
	}
	_, c := get(newWorld(t, egressproxy.Limits{}, answer))
	all := c.Sent + c.Received
	for _, limit := range []int64{all - 1, all, all + 1, c.Sent - 1, 1} {
		w := newWorld(t, egressproxy.Limits{Bytes: limit}, answer)
		status, c := get(w)
		if enough := limit >= all; enough != (c.Verdict == egressproxy.Allowed) || enough != (c.Reason == "") || enough && status != http.StatusOK {
			t.Errorf("limit %d of %d: %d, %+v", limit, all, status, c)
		}
		if used := c.Sent + c.Received; used != min(all, limit) || used != w.proxy.Used() {
			t.Errorf("limit %d: %d bytes passed, %d are counted", limit, used, w.proxy.Used())
		}
		if limit == all+1 {
			continue
		}
		if _, _, status := w.connect("good.test:{P}"); status != http.StatusForbidden {
			t.Errorf("limit %d: a tunnel is answered %d after all bytes are used", limit, status)
		}
		if c := w.wait(2)[1]; c.Reason != egressproxy.ReasonBytes {
			t.Errorf("%+v", c)
		}
	}
}

func TestBytesEndATunnel(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	w := newWorld(t, egressproxy.Limits{Bytes: limit}, func(c net.Conn) {
		buf := make([]byte, 64<<10)
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	})
	conn, r, _ := w.connect("good.test:{P}")
	_, _ = conn.Write(hello("good.test"))
	_, _ = io.Copy(io.Discard, r)
	if c := w.wait(1)[0]; c.Verdict != egressproxy.Denied || c.Reason != egressproxy.ReasonBytes || c.Sent+c.Received != limit {
		t.Errorf("%+v", c)
	}
}

func TestIdleConnectionsEnd(t *testing.T) {
	t.Parallel()
	for name, plain := range map[string]bool{"tunnel": false, "plain request": true, "body that never comes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, egressproxy.Limits{Idle: 100 * time.Millisecond}, hold)
			conn := w.dial()
			switch {
			case !plain:
				_, _ = io.WriteString(conn, w.fill("CONNECT good.test:{P} HTTP/1.1\r\nHost: x\r\n\r\n")+string(hello("good.test")))
			case name == "plain request":
				_, _ = io.WriteString(conn, w.fill("GET http://good.test:{P}/ HTTP/1.1\r\nHost: x\r\n\r\n"))
			default:
				_, _ = io.WriteString(conn, w.fill("POST http://good.test:{P}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nx"))
			}
			if c := w.wait(1)[0]; c.Verdict != egressproxy.Denied || c.Reason != egressproxy.ReasonIdle {
				t.Errorf("%+v", c)
			}
			_, _ = io.Copy(io.Discard, conn) // ends
		})
	}
}

func TestNewRulesEndWhatTheyForbid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, hold, "good.test:{P}", "other.test:{P}")
	w.names["other.test"] = []string{publicIP}
	ends := w.tunnel("good.test:{P}", "good.test")
	stays := w.tunnel("other.test:{P}", "other.test")
	w.proxy.SetRules(w.rules("*:{P}"))
	_, err := ends.Write(data("x"))
	testbed.Must(t, err)
	w.proxy.SetRules(w.rules("other.test:{P}"))
	if c := w.wait(1)[0]; c.Host != "good.test" || c.Reason != egressproxy.ReasonRules || c.Verdict != egressproxy.Denied {
		t.Errorf("%+v", c)
	}
	_, _ = io.Copy(io.Discard, ends)
	before := len(w.host.received())
	_, _ = stays.Write(data("still here"))
	w.until(func() bool { return len(w.host.received()) == before+len(data("still here")) })
	if _, _, status := w.connect("good.test:{P}"); status != http.StatusForbidden {
		t.Errorf("a new tunnel: %d", status)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, hold)
	w.tunnel("good.test:{P}", "good.test")
	plain := w.dial()
	_, _ = io.WriteString(plain, w.fill("GET http://good.test:{P}/ HTTP/1.1\r\nHost: x\r\n\r\n"))
	w.until(func() bool { return w.host.conns.Load() == 2 })
	w.proxy.Close()
	for _, c := range w.wait(2) {
		if c.Reason != egressproxy.ReasonClosed {
			t.Errorf("%+v", c)
		}
	}
	if _, _, status := w.connect("good.test:{P}"); status != http.StatusServiceUnavailable {
		t.Errorf("a tunnel after the end: %d", status)
	}
	w.proxy.Close()
}

// Between the check of a name's addresses and the connection another answer changes nothing: the name is asked for once.
func TestRebinding(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, answer)
	w.names["x.wild.test"], w.next["x.wild.test"] = []string{publicIP}, []string{victimIP}
	for i, reason := range []string{"", egressproxy.ReasonAddress} {
		res, err := w.client(nil).Get(w.fill("http://x.wild.test:{P}/"))
		testbed.Must(t, err)
		_ = res.Body.Close()
		if c := w.wait(i + 1)[i]; c.Reason != reason || len(w.lookups()) != i+1 {
			t.Errorf("%d: %d, %+v, %d lookups", i, res.StatusCode, c, len(w.lookups()))
		}
	}
	if w.hide.conns.Load() != 0 {
		t.Error("the victim was reached")
	}
}

// The address is checked once more when it is connected to.
func TestTheConnectedAddressIsChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, answer)
	var checks atomic.Int64
	p := egressproxy.New(egressproxy.Options{
		Rules: w.rules("good.test:{P}"), Resolver: w, Report: w.report,
		Public: func(...netip.Addr) bool { return checks.Add(1) == 1 },
	})
	defer p.Close()
	w.serve(p)
	if _, _, status := w.connect("good.test:{P}"); status != http.StatusForbidden || checks.Load() != 2 || w.host.conns.Load() != 0 {
		t.Errorf("%d after %d checks, %d connections", status, checks.Load(), w.host.conns.Load())
	}
	if c := w.wait(1)[0]; c.Reason != egressproxy.ReasonAddress {
		t.Errorf("%+v", c)
	}
}

// The owner of a name chooses how many addresses it has: each of 6300 had the addresses of the machine read, and took a socket to sort them.
func TestAddressesOfANameAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, answer)
	for i, c := range []struct {
		addresses int
		reason    string
	}{{63, ""}, {64, ""}, {65, egressproxy.ReasonName}} {
		w.mu.Lock()
		w.names["good.test"] = slices.Repeat([]string{publicIP}, c.addresses)
		w.mu.Unlock()
		res, err := w.client(nil).Get(w.fill("http://good.test:{P}/"))
		testbed.Must(t, err)
		_ = res.Body.Close()
		testbed.Diff(t, fmt.Sprint("reason for ", c.addresses, " addresses"), c.reason, w.wait(i + 1)[i].Reason)
	}
}

// What listens on all addresses of the worker's machine is not for sandboxes.
func TestAddressesOfThisMachineAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, answer)
	p := egressproxy.New(egressproxy.Options{Rules: w.rules("good.test:{P}"), Resolver: w, Report: w.report})
	defer p.Close()
	w.serve(p)
	own, err := net.InterfaceAddrs()
	testbed.Must(t, err)
	for i, a := range own {
		prefix, _ := a.(*net.IPNet)
		w.mu.Lock()
		w.names["good.test"] = []string{prefix.IP.String()}
		w.mu.Unlock()
		if _, _, status := w.connect("good.test:{P}"); status != http.StatusForbidden || w.wait(i + 1)[i].Reason != egressproxy.ReasonAddress {
			t.Errorf("%s: %d", prefix, status)
		}
	}
}

// Large buffers are charged to the budget, and what it does not grant only makes a transfer slower.
func TestBuffersAreChargedToTheBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, func(c net.Conn) {
		_, _ = c.Write(data("decided"))
		hold(c)
	})
	b := budget.New(0)
	p := egressproxy.New(egressproxy.Options{Rules: w.rules("good.test:{P}"), Resolver: w, Report: w.report, Budget: b, Tenant: "t", Public: func(...netip.Addr) bool { return true }})
	defer p.Close()
	w.serve(p)
	for _, full := range []bool{false, true} {
		if full {
			h := b.Lasting("t")
			if !h.Grow(b.Share() / 4) { // all that a tenant has for what lasts
				t.Fatal("the budget is empty")
			}
			defer h.Release()
		}
		before := b.Stats().Used
		conn := w.tunnel("good.test:{P}", "good.test")
		_, _ = io.ReadFull(conn, make([]byte, len(data("decided"))))
		limit := int64(0)
		for range 200 {
			_, err := conn.Write(make([]byte, 64<<10))
			testbed.Must(t, err)
			limit = max(limit, b.Stats().Used-before)
		}
		_ = conn.Close()
		w.until(func() bool { return b.Stats().Used == before })
		if full && limit > 0 || limit > 4*128<<10 {
			t.Errorf("full: %v: %d bytes were charged", full, limit)
		}
	}
}

// A host that answers with very many short lines of a header is not read to their end.
func TestLinesOfAnAnswerAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+strings.Repeat("a:\n", 7200)+"\r\n")
		}
	})
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, w.fill("http://good.test:{P}/"), nil)
	res, err := w.client(nil).Do(r)
	testbed.Must(t, err)
	_ = res.Body.Close()
	if c := w.wait(1)[0]; res.StatusCode != http.StatusBadGateway || c.Reason != egressproxy.ReasonBroken || c.Received > 4<<10 {
		t.Errorf("it is answered with %d: %+v", res.StatusCode, c)
	}
}
