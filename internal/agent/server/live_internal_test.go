package server

import "testing"

// The echo of a key and full frames go out without a pause; what is between them waits for company.
func TestWhatGathers(t *testing.T) {
	t.Parallel()
	for written, want := range map[int]bool{
		1: false, muchAtOnce - 1: false, muchAtOnce: true, muchAtOnce + 1: true, fullEnough - 1: true, fullEnough: false, fullEnough + 1: false,
	} {
		if got := gathers(written); got != want {
			t.Errorf("%d bytes: %t", written, got)
		}
	}
}
