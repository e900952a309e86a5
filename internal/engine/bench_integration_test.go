//go:build integration

package engine_test

import (
	"io"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// The cost of a sandbox from Create to Remove.
func BenchmarkCreateStartRemove(b *testing.B) {
	f := setup(b)
	s := f.spec(b, "wait")
	for b.Loop() {
		s.SandboxID = farm.NewID(farm.SandboxPrefix)
		id := f.start(b, s)
		b.StopTimer()
		if err := f.Remove(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// How fast bytes come out of an exec stream.
func BenchmarkDialThroughput(b *testing.B) {
	f := setup(b)
	id := f.start(b, f.spec(b, "wait"))
	const mib = 64
	b.SetBytes(mib << 20)
	for b.Loop() {
		s, err := f.Dial(b.Context(), id, []string{"/sandfarm/agent", "flood", "64"}, "")
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, s); err != nil || n != mib<<20 {
			b.Fatalf("%d bytes, error %v", n, err)
		}
		_ = s.Close()
	}
}

// How long it takes until a stream into a sandbox is open and its program has answered.
func BenchmarkDialOpen(b *testing.B) {
	f := setup(b)
	id := f.start(b, f.spec(b, "wait"))
	for b.Loop() {
		s, err := f.Dial(b.Context(), id, []string{"/sandfarm/agent", "echo"}, "")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Write([]byte("x")); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		_ = s.Close()
	}
}

// The same with the engine proxy in between.
func BenchmarkThroughTheProxy(b *testing.B) {
	b.Run("CreateStartRemove", BenchmarkCreateStartRemove)
	b.Run("DialOpen", BenchmarkDialOpen)
	b.Run("DialThroughput", BenchmarkDialThroughput)
}
