//go:build faults

package faulttest_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const (
	// liveBytes is the length of a download that is still going on when its worker is killed.
	liveBytes = 96 << 20
	// liveBefore is how much of it comes before that.
	liveBefore = 4 << 20
)

// Workers are killed while a terminal is open and a download runs. The terminal goes on, through the other worker of the node or the same one
// when it is back: nothing is lost and nothing comes twice. The download goes on where it stopped.
func TestLivePathOutlivesWorkers(t *testing.T) {
	t.Parallel()
	f := newFarm(t, faulttest.Config{Workers: 2, Schedulers: 1})
	box := f.Box(wire.CreateRequest{})
	command := fmt.Sprintf("head -c %d /dev/urandom > big && sha256sum big", liveBytes)
	made, err := f.Command(t.Context(), box, wire.CommandRequest{Command: &command}, client.WithWait(time.Minute))
	if err != nil || made.Result == nil || made.Result.Command == nil {
		t.Fatalf("make a file: %v %+v", err, made)
	}
	sum, _, _ := strings.Cut(made.Result.Command.Results[0].Stdout, " ")
	term := openTerminal(t, f, box)
	workers := f.Workers()
	for _, victims := range [][]string{{workers[0]}, {workers[1]}, workers} {
		get := &resumed{fs: f.FS(box), sum: sha256.New()}
		get.read(t, liveBefore)
		term.settle(t)
		f.Kill(victims...)
		at := time.Now()
		if len(victims) == len(workers) {
			f.Start(victims...)
		}
		get.read(t, liveBytes)
		testbed.Diff(t, fmt.Sprintf("%v killed: the file", victims), sum, hex.EncodeToString(get.sum.Sum(nil)))
		term.settle(t)
		t.Logf("%v killed: the terminal stood still for %s, the download was resumed %d times and took %s", victims, term.still(), get.resumes, time.Since(at))
		if len(victims) < len(workers) {
			f.Start(victims...)
		}
		f.AwaitReady()
	}
	term.end(t)
}

// terminal is a program on a terminal that answers each line.
type terminal struct {
	a       *client.Attachment
	typed   atomic.Int64 // lines
	seen    atomic.Int64 // answers, in order
	longest atomic.Int64 // nanoseconds between two answers
	stop    chan struct{}
	stopped chan error // of the output
}

// openTerminal starts the program and types a line every 20 ms.
func openTerminal(t *testing.T, f *faulttest.Farm, box string) *terminal {
	t.Helper()
	command := `stty -echo; echo go; while read n; do echo "got $n"; done; exit 7`
	made, err := f.StartProcess(t.Context(), box, wire.ProcessRequest{Command: &command, PTY: &wire.TerminalSize{Cols: 80, Rows: 24}})
	testbed.Must(t, err)
	term := &terminal{a: f.Attach(box, made.ID), stop: make(chan struct{}), stopped: make(chan error, 1)}
	ready := make(chan struct{})
	go func() { term.stopped <- term.follow(t.Context(), ready) }()
	select {
	case <-ready:
	case err := <-term.stopped:
		t.Fatalf("the terminal has ended: %v", err)
	}
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			if term.a.Write(t.Context(), fmt.Appendf(nil, "%d\n", term.typed.Load()+1)) != nil {
				return
			}
			term.typed.Add(1)
			select {
			case <-tick.C:
			case <-term.stop:
				term.a.End()
				return
			}
		}
	}()
	return term
}

// follow reads the answers, which come once each and in order.
func (m *terminal) follow(ctx context.Context, ready chan<- struct{}) error {
	var rest string
	last := time.Now()
	for out, err := range m.a.Output(ctx) {
		switch {
		case err != nil:
			return err
		case out.Kind == wire.AttachDropped:
			return errors.New("output was lost")
		case out.Exit != nil && (out.Exit.ExitCode != 7 || rest != ""):
			return fmt.Errorf("it ended with %+v after %q", *out.Exit, rest)
		}
		m.longest.Store(max(m.longest.Load(), int64(time.Since(last))))
		last = time.Now()
		for rest += string(out.Data); ; {
			line, after, ok := strings.Cut(rest, "\r\n")
			if !ok {
				break
			}
			rest = after
			if line == "go" {
				close(ready)
				continue
			}
			if want := fmt.Sprintf("got %d", m.seen.Add(1)); line != want {
				return fmt.Errorf("the answer is %q, want %q", line, want)
			}
		}
	}
	return nil
}

// settle waits until some lines more are answered.
func (m *terminal) settle(t *testing.T) {
	t.Helper()
	want := m.typed.Load() + 5
	for end := time.Now().Add(time.Minute); m.seen.Load() < want; <-time.After(20 * time.Millisecond) {
		select {
		case err := <-m.stopped:
			t.Fatalf("the terminal has ended: %v", err)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("%d lines are answered, want %d", m.seen.Load(), want)
		}
	}
}

// still is the longest time without an answer since the last call.
func (m *terminal) still() time.Duration { return time.Duration(m.longest.Swap(0)) }

// end ends the input. Every line must be answered then.
func (m *terminal) end(t *testing.T) {
	t.Helper()
	close(m.stop)
	if err := <-m.stopped; err != nil || m.seen.Load() != m.typed.Load() || m.typed.Load() < 15 {
		t.Errorf("%v; %d lines were typed and %d answered", err, m.typed.Load(), m.seen.Load())
	}
}

// resumed is a download that goes on where it stopped.
type resumed struct {
	fs      *client.FS
	etag    string
	body    io.ReadCloser
	at      int64
	resumes int
	sum     hash.Hash
}

// read reads up to a position.
func (r *resumed) read(t *testing.T, to int64) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for r.at < to {
		if time.Now().After(deadline) {
			t.Fatalf("the download stands still at %d", r.at)
		}
		if r.body == nil && !r.open(t) {
			<-time.After(100 * time.Millisecond)
			continue
		}
		n, err := io.CopyN(r.sum, r.body, to-r.at)
		if r.at += n; err != nil {
			_ = r.body.Close()
			r.body = nil
		}
	}
	if to == liveBytes && r.body != nil {
		_ = r.body.Close()
	}
}

func (r *resumed) open(t *testing.T) bool {
	t.Helper()
	content, err := r.fs.OpenAt(t.Context(), "big", r.at, liveBytes-r.at)
	if client.CodeOf(err) == "unavailable" {
		return false
	}
	testbed.Must(t, err)
	if r.etag != "" {
		r.resumes++
		testbed.Diff(t, "the ETag from there on", r.etag, content.ETag)
	}
	r.etag, r.body = content.ETag, content
	return true
}
