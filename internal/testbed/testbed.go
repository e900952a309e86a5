// Package testbed is what tests of several packages share: how they end at an error, compare values, and wait for what has no signal; the addresses of
// servers that they start, and the logs of those while they run; what the kernel keeps of connections; the cores of tenants; a redis-server with a way to
// it that a test can cut, hold, or stop at a call, and processes that end at one of their commands of Redis; how often the model tests make random runs;
// and the programs that test MCP from outside.
package testbed

import (
	"bytes"
	"context"
	"flag"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/budget"
)

const (
	// timeout is how long Until waits. It only detects a hang, so a busy machine must not reach it.
	timeout = 2 * time.Minute
	// firstPause and lastPause are the shortest and the longest time between two looks.
	firstPause, lastPause = time.Millisecond, 50 * time.Millisecond
)

// Must ends the test at an error.
func Must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Check fails the test unless a condition holds. The message says what was found instead.
func Check(tb testing.TB, holds bool, format string, args ...any) {
	tb.Helper()
	if !holds {
		tb.Errorf(format, args...)
	}
}

// Require is Check, and ends the test.
func Require(tb testing.TB, holds bool, format string, args ...any) {
	tb.Helper()
	if !holds {
		tb.Fatalf(format, args...)
	}
}

// Diff fails the test if got differs from want. what says in words what they are.
func Diff(tb testing.TB, what string, want, got any, opts ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Until waits until a condition holds, and fails the test if it does not within two minutes. what says in words what is waited for. Use it only for
// what gives no signal.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	pause := firstPause
	for end := time.Now().Add(timeout); !holds(); pause = min(2*pause, lastPause) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", timeout, what)
		}
		time.Sleep(pause) //nolint:forbidigo // there is no signal
	}
}

// AwaitListener waits until a server listens at an address.
func AwaitListener(tb testing.TB, address string) {
	tb.Helper()
	Until(tb, address+" answers", func() bool {
		conn, err := new(net.Dialer).DialContext(tb.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// Address returns an address of 127.0.0.1 for a server that must be told its port in advance, and that may stop and start. Its port is free, and stays
// reserved until the test ends: the kernel gives it to no one who asks for any port, neither to listen nor to connect. What holds the port is a
// socket that is bound with SO_REUSEADDR and does not listen; servers set SO_REUSEADDR (those in Go, Redis and MinIO do). Until a server listens,
// connections are refused. Where the test itself listens, or can ask who does, use port 0 instead.
func Address(tb testing.TB) string {
	tb.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	syscall.CloseOnExec(fd)
	tb.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		tb.Fatalf("reserve an address: %v", err)
	}
	at, ok := bound.(*syscall.SockaddrInet4)
	if !ok {
		tb.Fatalf("reserve an address: got %T", bound)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Port))
}

// Port is the port of an Address.
func Port(tb testing.TB) string {
	tb.Helper()
	_, port, _ := net.SplitHostPort(Address(tb))
	return port
}

// tailBytes is the length of Tail: enough for the message of a failed test.
const tailBytes = 6000

// Log is a text that can be read while it is written. The zero value is empty and ready.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends; it never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Tail returns the end of what was written so far, for the message of a failed test.
func (l *Log) Tail() string {
	text := l.String()
	return text[max(0, len(text)-tailBytes):]
}

// Runs makes the random runs of rapid as many and as long as it says, unless rapid's own flags are given. They are others each time, with -count
// too; the log says how to repeat them. The flags are those of the whole test binary: a test that calls this is not parallel.
func Runs(t *testing.T, checks, steps int) {
	t.Helper()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{
		"rapid.checks": strconv.Itoa(checks), "rapid.steps": strconv.Itoa(steps),
		"rapid.seed":       strconv.FormatUint(1+rand.Uint64N(1<<32), 10), //nolint:gosec // chance, not a secret
		"rapid.nofailfile": "true",
	} {
		f := flag.Lookup(name)
		if given[name] {
			continue
		}
		if err := f.Value.Set(value); err != nil { // not flag.Set: the flag is still not given, so the next run of -count draws another seed
			t.Fatal(err)
		}
	}
	t.Logf("to repeat these runs: -rapid.seed=%s -rapid.checks=%s -rapid.steps=%s", flag.Lookup("rapid.seed").Value, flag.Lookup("rapid.checks").Value, flag.Lookup("rapid.steps").Value)
}

// Cores are cores of a tenant. Each gives itself back; a second call does nothing.
type Cores []func()

// TakeCores takes all cores that a tenant has left.
func TakeCores(tb testing.TB, memory *budget.Budget, tenant string) (all Cores) {
	tb.Helper()
	ctx := Abandoned(tb, memory, tenant)
	for leave, err := budget.Core(ctx, budget.SmallBytes+1); err == nil; leave, err = budget.Core(ctx, budget.SmallBytes+1) {
		all = append(all, leave)
	}
	return all
}

// Leave gives all back.
func (c Cores) Leave() {
	for _, leave := range c {
		leave()
	}
}

// FreeCores is how many cores a tenant has left.
func FreeCores(tb testing.TB, memory *budget.Budget, tenant string) int {
	tb.Helper()
	all := TakeCores(tb, memory, tenant)
	all.Leave()
	return len(all)
}

// Abandoned is the context of a request of a tenant that nobody waits for: what has to wait for a core ends with context.Canceled.
func Abandoned(tb testing.TB, memory *budget.Budget, tenant string) context.Context {
	tb.Helper()
	gone, cancel := context.WithCancel(tb.Context())
	cancel()
	ctx, hold := memory.With(gone, tenant, 0)
	tb.Cleanup(hold.Release)
	return ctx
}

// WithoutCore is Abandoned of a tenant that has no core left: work on more than budget.SmallBytes ends.
func WithoutCore(tb testing.TB, memory *budget.Budget, tenant string) context.Context {
	tb.Helper()
	TakeCores(tb, memory, tenant)
	return Abandoned(tb, memory, tenant)
}

// ReceiveBuffer is how much memory the kernel may use for what has come over a connection and is not read, in bytes; 0: as much as it likes.
func ReceiveBuffer(tb testing.TB, conn syscall.Conn) (bytes int) {
	tb.Helper()
	raw, err := conn.SyscallConn()
	Must(tb, err)
	var failed error
	Must(tb, raw.Control(func(fd uintptr) {
		var fixed int
		if fixed, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BUF_LOCK); fixed&unix.SOCK_RCVBUF_LOCK != 0 {
			bytes, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
		}
	}))
	Must(tb, failed)
	return bytes
}
