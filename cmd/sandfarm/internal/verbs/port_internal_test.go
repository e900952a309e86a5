package verbs

import "testing"

func TestPortsToForward(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]int{
		"8888": {8888, 8888}, "80:8080": {80, 8080}, "0:22": {0, 22}, "1": {1, 1}, "65535:65535": {65535, 65535},
		"0": {}, "65536": {}, "1:65536": {}, "65536:1": {}, "": {}, ":": {}, "a:1": {}, "1:": {}, "1:2:3": {}, "-1": {}, "0:0": {},
	} {
		local, port, err := forwardOf(text)
		if (err == nil) != (want[1] != 0) || err == nil && (local != want[0] || port != want[1]) {
			t.Errorf("%q: %d, %d, %v", text, local, port, err)
		}
	}
}
