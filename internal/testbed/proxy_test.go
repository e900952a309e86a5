//go:build integration

package testbed_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// setUp starts a server and a client without retries behind a proxy.
func setUp(t *testing.T) (*testbed.Proxy, redis.UniversalClient, redis.UniversalClient) {
	t.Helper()
	server := testbed.NewRedis(t)
	scripts, err := testbed.NewScripts(fstest.MapFS{"raise.lua": {Data: []byte("return redis.call('INCR', KEYS[1])\n")}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	proxy := testbed.NewProxyTo(t, "unix", server.Socket, scripts)
	through := redis.NewClient(&redis.Options{Addr: proxy.Address(), MaxRetries: -1})
	t.Cleanup(func() { _ = through.Close() })
	return proxy, through, server.Client(t)
}

// Everything that Redis answers passes, in pipelines too, with pushes between the answers.
func TestProxyPassesAnswers(t *testing.T) {
	t.Parallel()
	_, through, _ := setUp(t)
	long := strings.Repeat("long ", 100_000)
	subscription := through.Subscribe(t.Context(), "news")
	defer func() { _ = subscription.Close() }()
	if _, err := subscription.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	pipe := through.Pipeline()
	pipe.Set(t.Context(), "a", long, 0)
	pipe.HSet(t.Context(), "h", "f", "1", "g", "2")
	a, h, missing := pipe.Get(t.Context(), "a"), pipe.HGetAll(t.Context(), "h"), pipe.Get(t.Context(), "none")
	pipe.Publish(t.Context(), "news", "told")
	if _, err := pipe.Exec(t.Context()); err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	if a.Val() != long || !errors.Is(missing.Err(), redis.Nil) {
		t.Errorf("%d bytes, %v", len(a.Val()), missing.Err())
	}
	if diff := cmp.Diff(map[string]string{"f": "1", "g": "2"}, h.Val()); diff != "" {
		t.Error(diff)
	}
	if got, err := subscription.ReceiveMessage(t.Context()); err != nil || got.Payload != "told" {
		t.Errorf("%v %v", got, err)
	}
}

// A stop before the nth call of a script keeps it from Redis; one after it keeps the answer from the client.
func TestProxyStopsAtCalls(t *testing.T) {
	t.Parallel()
	proxy, through, direct := setUp(t)
	raise := redis.NewScript("local unused = 1\nreturn redis.call('INCR', KEYS[1])\n")
	count := func() int {
		n, err := direct.Get(t.Context(), "n").Int()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	call := func() error { return raise.Run(t.Context(), through, []string{"n"}).Err() }
	if err := call(); err != nil {
		t.Fatal(err)
	}
	seen := 0
	proxy.At(testbed.Stop{Call: "raise", Nth: 2, Do: func([]string) bool { seen = count(); return false }})
	proxy.At(testbed.Stop{Call: "raise", With: "other key", Do: func([]string) bool { t.Error("no such call"); return true }})
	if err := call(); err != nil {
		t.Fatal(err)
	}
	if err := call(); err == nil || seen != 2 || count() != 2 {
		t.Errorf("before the third call: %v, %d calls seen, %d calls made", err, seen, count())
	}
	proxy.At(testbed.Stop{Call: "raise", With: "n", After: true, Do: func([]string) bool { seen = count(); return false }})
	if err := call(); err == nil || seen != 3 || count() != 3 {
		t.Errorf("after the next call: %v, %d calls seen, %d calls made", err, seen, count())
	}
	proxy.At(testbed.Stop{Call: "get", After: true, Do: func([]string) bool { seen = count(); return true }})
	if n, err := through.Get(t.Context(), "n").Int(); err != nil || n != 3 {
		t.Errorf("an answer that was stopped and let through: %d, %v", n, err)
	}
	if left := proxy.Clear(); left != 1 {
		t.Errorf("%d stops left", left)
	}
}

// A stop before an answer that never comes waits for the next such call.
func TestProxyKeepsStopsWithoutAnswer(t *testing.T) {
	t.Parallel()
	server := testbed.NewRedis(t)
	proxy := testbed.NewProxy(t, server)
	passed := make(chan struct{})
	proxy.At(testbed.Stop{Call: "get", After: true, Do: func([]string) bool { return false }})
	proxy.At(testbed.Stop{Call: "strlen", Do: func([]string) bool { close(passed); return true }})
	server.Pause()
	left, err := net.Dial("tcp", proxy.Address())
	if err == nil {
		_, err = left.Write([]byte("*2\r\n$3\r\nget\r\n$1\r\na\r\n*2\r\n$6\r\nstrlen\r\n$1\r\na\r\n"))
	}
	if err != nil {
		t.Fatal(err)
	}
	<-passed
	server.Kill()
	_ = left.Close()
	server.Start(t)
	again := redis.NewClient(&redis.Options{Addr: proxy.Address(), MaxRetries: -1})
	t.Cleanup(func() { _ = again.Close() })
	for range 500 { // the proxy may see later that the first connection has ended
		if err := again.Get(t.Context(), "a").Err(); !errors.Is(err, redis.Nil) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("the stop did not act")
}

// While the way is held nothing passes; afterwards everything does.
func TestProxyHolds(t *testing.T) {
	t.Parallel()
	proxy, through, direct := setUp(t)
	proxy.Hold(true)
	answered := make(chan error, 1)
	go func() { answered <- through.Set(t.Context(), "a", "1", 0).Err() }()
	if n, err := direct.Exists(t.Context(), "a").Result(); n != 0 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
	proxy.Hold(false)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
