package api_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// fragile is a way to a server whose connections each end after some bytes of either direction.
func fragile(t *testing.T, to string, up, down int64) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	var copying sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); copying.Wait() })
	copying.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			onward, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			cut := func() { _ = from.Close(); _ = onward.Close() }
			copying.Go(func() { _, _ = io.Copy(onward, io.LimitReader(from, up)); cut() })
			copying.Go(func() { _, _ = io.Copy(from, io.LimitReader(onward, down)); cut() })
		}
	})
	return "http://" + listener.Addr().String()
}

// The connection of the Go client breaks again and again in both directions: all bytes arrive, once and in their order.
func TestTheClientGoesOnAfterBreaks(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	box := f.sandbox()
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", "/v1/sandboxes/"+box+"/processes", `{"command":"cat; exit 6","stdin":true}`)
	c, err := client.New(fragile(t, f.web.Listener.Addr().String(), 400_000, 150_000))
	testbed.Must(t, err)
	a := c.Attach(box, made.ID)
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	go func() {
		for part := range slices.Chunk(sent, 10_000) {
			if a.Write(t.Context(), part) != nil {
				return
			}
		}
		a.End()
	}()
	var got []byte
	for out, err := range a.Output(t.Context()) {
		testbed.Must(t, err)
		switch out.Kind {
		case wire.AttachExit:
			if out.Exit.ExitCode != 6 {
				t.Errorf("%+v", out.Exit)
			}
		case wire.AttachDropped:
			t.Error("output was dropped")
		default:
			got = append(got, out.Data...)
		}
	}
	if !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back, and not the %d that were sent", len(got), len(sent))
	}
	if err := a.Write(t.Context(), []byte("x")); err == nil {
		t.Error("a write after the exit")
	}
}

// What cannot succeed is not tried again.
func TestTheClientGivesUpAtOnce(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	c, err := client.New(f.web.URL)
	testbed.Must(t, err)
	answers := 0
	for _, err := range c.Attach(f.sandbox(), "prc_x").Output(t.Context()) {
		if answers++; client.CodeOf(err) != "not_found" {
			t.Error(err)
		}
	}
	testbed.Diff(t, "answers", 1, answers)
}
