package files

import (
	"archive/tar"
	"bytes"
	"os"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A compressed upload larger than the sandbox's memory ended the sandbox: what was written remained when the kernel had ended the writer.
func TestUploadsEndBeforeTheMemoryIsUsedUp(t *testing.T) {
	t.Parallel()
	const limit, free = 128 << 20, 8 << 20
	source := newSource(bytes.NewReader(make([]byte, 16<<20)))
	source.memory = func() (held, bound int64) { return limit - 3*free/2 + source.n, limit }
	file, err := os.CreateTemp(t.TempDir(), "")
	testbed.Must(t, err)
	if err := take(file, source); farm.CodeOf(err) != farm.CodeTooLarge {
		t.Errorf("take = %v, want %s", err, farm.CodeTooLarge)
	}
	if source.n < free/2 || source.n > free/2+2*memoryStep {
		t.Errorf("%d bytes were read, want about %d", source.n, free/2)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range []string{"a", "b"} {
		testbed.Must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: 8 << 20}))
		_, err := w.Write(make([]byte, 8<<20))
		testbed.Must(t, err)
	}
	source = newSource(&archive)
	source.memory = func() (held, bound int64) { return limit - 3*free/2 + source.n, limit }
	top, err := openTree(t.TempDir())
	testbed.Must(t, err)
	defer top.close()
	err = unpack(top, "d", source, nil)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeTooLarge, "unpack = %v, want %s", err, farm.CodeTooLarge)
	_, err = stat(top, "d", false)
	testbed.Check(t, err != nil, "a part of an archive that did not fit was unpacked")
}
