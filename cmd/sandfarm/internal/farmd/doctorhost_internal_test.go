package farmd

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestDoctorComparesTheHostsNumbers(t *testing.T) {
	t.Parallel()
	const need = 3 << 20 / 384 * 1024 // 3 GiB of memory, 384 bytes for each file
	for _, c := range []struct {
		files, terminals, kernel, timestamps string
		want                                 [3]string
	}{
		{fmt.Sprint(need - 1), "2303", "6.12.41+deb13-amd64", "1", [3]string{StatusNote, StatusNote, StatusNote}},
		{fmt.Sprint(need), "2304", "6.12.41+deb13-amd64", "0", [3]string{StatusOK, StatusOK, StatusOK}},
		{"9223372036854775807", "65536", "6.13.0", "1", [3]string{StatusOK, StatusOK, StatusOK}},
		{"many", "", "", "", [3]string{StatusNote, StatusNote, StatusNote}},
	} {
		proc := t.TempDir()
		for name, text := range map[string]string{
			"fs/file-max": c.files, "kernel/pty/max": c.terminals, "kernel/osrelease": c.kernel, "net/core/tstamp_allow_data": c.timestamps,
		} {
			path := filepath.Join(proc, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for i, f := range doctorHost(proc, 10, 3<<10) {
			if f.Status != c.want[i] || (f.Advice == "") != (f.Status == StatusOK) {
				t.Errorf("%+v: %+v", c, f)
			}
		}
	}
	for _, f := range doctorHost(t.TempDir(), 10, 3<<10) {
		if f.Status != StatusNote || f.Advice == "" {
			t.Errorf("without sysctls: %+v", f)
		}
	}
}
