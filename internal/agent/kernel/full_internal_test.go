package kernel

import "testing"

// A kernel that does not start says what is full, and nothing where nothing is.
func TestWhatIsFull(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	const help = ". Delete files there, or create a sandbox with more "
	for want, s := range map[string]struct {
		places []place
		limit  int64
	}{
		"": {[]place{{path: "/workspace", used: 384 * mib}, {path: "/tmp"}}, 512 * mib}, // a kernel just fits
		"files take 384 of the sandbox's 511 MiB of memory (/workspace 384 MiB)" + help + "memory_mb":                                                                                     {[]place{{path: "/workspace", used: 384 * mib}, {path: "/tmp", used: 1}}, 511 * mib},
		"nothing more fits into /workspace" + help + "disk_mb":                                                                                                                            {[]place{{path: "/workspace", used: mib, full: true}}, 0},
		"nothing more fits into /workspace, /tmp, and files take 120 of the sandbox's 128 MiB of memory (/workspace 100 MiB, /home 10 MiB, /tmp 10 MiB)" + help + "disk_mb and memory_mb": {[]place{{"/workspace", 100 * mib, true}, {"/home", 10 * mib, false}, {"/tmp", 10 * mib, true}}, 128 * mib},
	} {
		if got := sentence(s.places, s.limit); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}
